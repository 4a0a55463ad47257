// Options as the words of a command line that a shell takes.
#pragma once

#include <string>

#include "tools/options/options.h"

namespace shardplan {

// A word as a POSIX shell takes it, quoted where it must be.
std::string shell_word(const std::string& word);

// `shardplan COMMAND` with every option that the command knows, output apart.
std::string command_text(const Options& options, const std::string& command);

// The options with these, "--tp 4 --recompute full", in place of those of their names. Switches of
// the framework take the place of those of their keys.
Options with_option_words(Options options, const std::string& words);

}  // namespace shardplan
