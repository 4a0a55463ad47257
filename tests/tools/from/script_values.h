// Values of the variable P in scripts of tests.
#pragma once

#include <string>

#include "tools/from/shell/read_shell.h"
#include "tools/from/shell/words.h"

namespace shardplan {

// The value of P behind a script; it has a "$" where it cannot be known.
inline std::string value_behind(const std::string& script) {
  const ShellValues variables = read_shell(script, "x.sh").variables;
  const auto found = variables.find("P");
  return found == variables.end() || found->second.empty() ? "" : found->second.front();
}

inline bool is_unknown(const std::string& script) {
  return value_behind(script).find('$') != std::string::npos;
}

}  // namespace shardplan
