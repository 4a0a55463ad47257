#include "tools/from/script_words.h"

namespace shardplan {

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) { text += (text.empty() ? "$" : ", $") + name; }
  return text;
}

std::string set_of(const std::string& name) {
  const bool is_argument = name.find_first_not_of("0123456789") == std::string::npos;
  return "--set " + name + "=VALUE" +
         (is_argument ? ", or --from a script beside it that starts it with its arguments" : "");
}

}  // namespace shardplan
