#include "tools/from/argument_file.h"

#include <algorithm>
#include <sstream>

namespace shardplan {
namespace {

bool holds(const std::string& value, const std::string& word) {
  std::istringstream words(value);
  for (std::string each; words >> each;) {
    if (each == word) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string variable_with_arguments(const ShellScript& script) {
  for (const auto& [name, values] : script.variables) {
    if (is_shell_name(name) && std::ranges::any_of(values, [](const std::string& value) {
          return holds(value, "--num-layers");
        })) {
      return name;
    }
  }
  return "";
}

std::string place_of_argument(const std::string& argument, const std::string& text,
                              const std::string& file) {
  const auto is_longer = [&](std::size_t at) {  // --num-layers-per-virtual-pipeline-stage
    const char next = at + argument.size() < text.size() ? text[at + argument.size()] : ' ';
    return next == '-' || next == '_' || is_shell_name(std::string(1, next));
  };
  std::size_t at = text.rfind(argument);
  while (at != std::string::npos && is_longer(at)) {
    at = at == 0 ? std::string::npos : text.rfind(argument, at - 1);
  }
  if (at == std::string::npos) {
    return file;
  }
  const auto before = text.begin() + static_cast<std::ptrdiff_t>(at);
  return file + ":" + std::to_string(1 + std::count(text.begin(), before, '\n'));
}

}  // namespace shardplan
