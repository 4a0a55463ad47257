// What people type beside the options of the table, and mean them by.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/options/options.h"

namespace shardplan {

// --json for --format json, and --sequence-parallel alone for --sequence-parallel on.
std::vector<std::string> with_spoken_words(std::string_view command,
                                           const std::vector<std::string>& arguments);

// "a=true,b=true", the last value of an option that takes KEY=VALUE and may be repeated, in its
// parts. Lists whose parts are not all of this form are one value.
void split_pairs(const OptionRow& row, std::vector<std::string>& values);

// The word that stands before the options is the model, or the run's file by its ending.
void take_positional_job(Options& options);

// An answer would land in a file whose name says another format: InputError.
void refuse_other_formats(const Options& options);

}  // namespace shardplan
