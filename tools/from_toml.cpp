// torchtitan's configurations (torchtitan/models/*/train_configs/*.toml): settings by their path,
// "training.seq_len".
#include <toml++/toml.h>

#include <sstream>

#include "data/json_message.h"
#include "tools/from_file.h"

namespace shardplan {
namespace {

std::string text_of(const toml::node& node, const std::string& opening) {
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  if (const auto* whole = node.as_integer()) {
    return std::to_string(whole->get());
  }
  if (const auto* real = node.as_floating_point()) {
    return exact_text(real->get());
  }
  if (const auto* boolean = node.as_boolean()) {
    return boolean->get() ? "true" : "false";
  }
  throw InputError(opening + "found a date or a nested list, expected a word or a number");
}

void add_table(RunSettings& settings, const toml::table& table, const std::string& path) {
  for (const auto& [key, node] : table) {
    const std::string name = path + (path.empty() ? "" : ".") + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      add_table(settings, *inner, name);
      continue;
    }
    const std::int64_t line = std::int64_t{node.source().begin.line};
    Setting setting{
        .name = name, .values = {}, .place = place(settings.file, line, "") + name + ": "};
    if (const auto* list = node.as_array()) {
      for (const toml::node& item : *list) {
        setting.values.push_back(text_of(item, setting.place));
      }
    } else {
      setting.values.push_back(text_of(node, setting.place));
    }
    if (!setting.values.empty()) {  // an empty list sets nothing
      settings.arguments.push_back(std::move(setting));
    }
  }
}

}  // namespace

RunSettings settings_from_toml(const std::string& text, const std::string& file) {
  RunSettings settings;
  settings.format = RunFormat::kTorchtitan;
  settings.file = file;
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& problem) {  // the library's words become ours
    throw InputError(place(file, std::int64_t{problem.source().begin.line}, "") +
                     "found no TOML here: " + std::string(problem.description()));
  }
  add_table(settings, root, "");
  return settings;
}

}  // namespace shardplan
