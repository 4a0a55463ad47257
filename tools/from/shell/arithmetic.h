// Arithmetic of a shell, which is C's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/from/shell/words.h"

namespace shardplan {

// Stores what an expression assigns; nothing: the value is not known.
using ShellAssign = std::function<void(const std::string& name, std::optional<std::int64_t> value)>;

struct ShellNumber {
  std::optional<std::int64_t> value;
  bool is_deep = false;  // too many parts within each other: not read to its end
  int operands = 0;      // that were read, in variables too
};

// An expression of C with integers and variables, as $((...)) reckons it; nothing where it is none,
// or not of known variables. What it assigns goes to `assign`, if there is one.
ShellNumber shell_number(const std::string& text, const ShellValues& values,
                         const ShellAssign& assign = {});
std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellValues& values,
                                             const ShellAssign& assign = {});

// Whether the numbers from one to the other are few enough to be written down.
bool is_short_range(std::int64_t first, std::int64_t last);

}  // namespace shardplan
