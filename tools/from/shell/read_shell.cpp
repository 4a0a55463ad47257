#include "tools/from/shell/read_shell.h"

#include <algorithm>

#include "tools/from/shell/expansion.h"
#include "tools/from/shell/interpreter.h"
#include "tools/from/shell/words.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// "3" of $3; 0 for another name, and for more than a script has.
std::size_t argument_number(const std::string& name) {
  constexpr std::size_t kMostDigits = 3;
  const bool is_digits = name.find_first_not_of("0123456789") == std::string::npos;
  return is_digits && name.size() <= kMostDigits ? std::stoul("0" + name) : 0;
}

}  // namespace

ShellScript read_shell(const std::string& text, const std::string& file, const ShellGiven& given) {
  ShellState state{.given = given};
  std::string clean = text;
  std::erase_if(clean, is_mark);
  Words arguments;
  for (const auto& [name, value] : given.values) {
    state.context.values[name] = {value};
    arguments.resize(std::max(arguments.size(), argument_number(name)));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = std::to_string(i + 1);
    const auto value = given.values.find(name);
    arguments[i] = value != given.values.end() ? value->second : marked(kUnsetMark, "$", name);
  }
  if (!arguments.empty()) {
    state.context.values["@"] = arguments;
    state.context.values["*"] = arguments;
  }
  state.context.values["IFS"] = {" \t\n"};
  state.context.values["0"] = {file};
  state.context.values["BASH_SOURCE"] = {file};
  {
    ShellInterpreter interpreter(state, clean, file, 1, {});
    interpreter.install();
    interpreter.whole();
  }
  ShellScript script = std::move(state.script);
  for (const std::string& name : state.exported) {
    const auto value = state.context.values.find(name);
    if (value != state.context.values.end() && !value->second.empty()) {
      script.exported[name] = plain(value->second.front());
    }
  }
  for (auto& [name, values] : state.context.values) {
    for (std::string& value : values) { value = plain(value); }
  }
  script.steps = state.context.steps;
  script.variables = std::move(state.context.values);
  script.mentioned = std::move(state.context.mentioned);
  for (std::size_t i = 0; script.mentioned.contains("@") && i < arguments.size(); ++i) {
    script.mentioned.insert(std::to_string(i + 1));
  }
  return script;
}

}  // namespace shardplan
