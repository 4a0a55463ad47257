// A training's own YAML, of axolotl, LLaMA-Factory, TRL, ms-swift or accelerate, with what a plan
// changes in it, in the words of the program that reads it.
#pragma once

#include <string>
#include <vector>

#include "tools/export/own_yaml.h"
#include "tools/options/options.h"
#include "tools/options/question.h"

namespace shardplan {

// What has to become of the file's keys. `before`: the question that the file asks as it is.
// Changes that have no key in the file are left out: whether the edited file then asks for `after`
// is seen when it is read.
std::vector<YamlChange> trainer_changes(const std::string& text, const std::string& file,
                                        const Question& before, const Question& after);

// Options that say beside the edited file what it has no keys for: the model of a run that names
// one that is not known here, and what accelerate's file leaves to the program that it starts.
Options with_words_beside(Options beside, const Options& options, const std::string& text,
                          const Question& question);

}  // namespace shardplan
