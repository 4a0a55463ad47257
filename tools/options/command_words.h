// Options as the words of a command line that a shell takes.
#pragma once

#include <string>

#include "tools/options/options.h"

namespace shardplan {

// A word as a POSIX shell takes it.
std::string shell_word(const std::string& word);

// `shardplan estimate` with every option that estimate knows, output apart.
std::string estimate_command(const Options& options);

// The options with these, "--tp 4 --recompute full", in place of those of their names. Switches of
// the framework take the place of those of their keys.
Options with_option_words(Options options, const std::string& words);

}  // namespace shardplan
