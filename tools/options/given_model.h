// --model with the words of --set that change what its config.json says.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"

namespace shardplan {

// The words of --set that are keys of the model's file. What the framework has, too, is its switch.
std::vector<std::string> model_words(const ModelFile& model, const Options& options,
                                     const std::vector<ProfileOption>& switches);

// The model with these words in place of what its file says.
ModelConfig model_of(ModelFile model, const Options& options,
                     const std::vector<std::string>& words);

}  // namespace shardplan
