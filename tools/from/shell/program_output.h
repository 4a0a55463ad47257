// What programs of a script write, where it is known.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "tools/from/shell/word_reader.h"

namespace shardplan {

std::string joined_words(const ShellWordReader::Words& words, std::size_t first);

// What printf writes behind its first word; nothing for formats other than %s, %d, %4d and their
// like.
std::optional<std::string> formatted(const ShellWordReader::Words& words);

}  // namespace shardplan
