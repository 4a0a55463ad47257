#include "tools/options/command_words.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace shardplan {
namespace {

std::vector<std::string> words_of_text(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) {
      words.push_back(text.substr(start, end - start));
    }
    start = end + 1;
  }
  return words;
}

void drop_key(Options& options, const std::string& key) {
  for (const char* name : {"framework-option", "set"}) {
    std::vector<std::string> words = all_of(options, name);
    std::erase_if(words, [&](const std::string& word) { return word.starts_with(key + "="); });
    if (words.empty()) {
      options.values.erase(name);
    } else {
      options.values[name] = words;
    }
  }
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char letter : word) { quoted += letter == '\'' ? "'\\''" : std::string(1, letter); }
  return quoted + "'";
}

std::string command_text(const Options& options, const std::string& command) {
  std::string text = "shardplan " + command;
  for (const OptionRow* row : options_of(command)) {
    if (row->is_output || (row->group == "Output" && row->name != "data")) {
      continue;
    }
    for (const std::string& value : all_of(options, row->name)) {
      text += " --" + row->name;
      text += row->kind == OptionKind::kSwitch ? "" : " " + shell_word(value);
    }
  }
  return text;
}

Options with_option_words(Options options, const std::string& words) {
  const std::vector<std::string> list = words_of_text(words);
  for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
    const std::string name = list[i].substr(list[i].find_first_not_of('-'));
    const std::string& value = list[i + 1];
    if (name == "framework-option") {
      drop_key(options, value.substr(0, value.find('=')));
      options.values[name].push_back(value);
    } else {
      options.values[name] = {value};
    }
  }
  return options;
}

}  // namespace shardplan
