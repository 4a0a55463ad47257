// Entries of a script's lists and maps (declare -A): NAME[key].
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/from/shell/word_reader.h"

namespace shardplan {

std::string list_of(const std::string& name);  // "NAME[key]" -> "NAME"

// Where the keys of `name` stand among the values, if they are not 0, 1, 2, ...
std::string keys_of(const std::string& name);

// The key behind this one; none is as large as the largest number.
std::string key_behind(std::int64_t number);

// What `index` (with marks) means as a key: a number, or any text in a map. Nothing if that is not
// known. What the index assigns is made: NAME[i++].
std::optional<std::string> list_key(const ShellWordContext& context, const std::string& name,
                                    const std::string& index);

// The key behind the last entry of a list.
std::string next_list_key(const ShellValues& values, const std::string& name);

// nullptr if there is none of this key, or it stands behind any number of entries.
const std::string* list_entry(const ShellValues& values, const std::string& name,
                              const std::string& key);
void set_list_entry(ShellValues& values, const std::string& name, const std::string& key,
                    const std::string& value);
void erase_list_entry(ShellValues& values, const std::string& name, const std::string& key);

}  // namespace shardplan
