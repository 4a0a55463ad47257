// torchtitan's configurations (torchtitan/models/*/train_configs/*.toml): settings by their path,
// "training.seq_len".
#include <toml++/toml.h>

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

// toml++ builds and frees the tables of a.a.a.a by recursion: as deep as half the file's length.
constexpr std::size_t kLongest = std::size_t{1} << 15;
constexpr int kDeepest = 8;  // "training.seq_len" is two deep

void add_table(RunSettings& settings, const toml::table& table, const std::string& path,
               int depth) {
  for (const auto& [key, node] : table) {
    const std::string name = path + (path.empty() ? "" : ".") + std::string(key.str());
    const std::int64_t line = std::int64_t{node.source().begin.line};
    if (depth > kDeepest) {
      throw InputError(place(settings.file, line, "") + "found tables more than " +
                       std::to_string(kDeepest) +
                       " deep, expected settings such as training.seq_len");
    }
    if (const auto* inner = node.as_table()) {
      add_table(settings, *inner, name, depth + 1);
      continue;
    }
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
  if (text.size() > kLongest) {
    throw InputError(file + ": found " + std::to_string(text.size()) +
                     " bytes, expected a configuration of at most " + std::to_string(kLongest));
  }
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& problem) {  // the library's words become ours
    throw InputError(place(file, std::int64_t{problem.source().begin.line}, "") +
                     "found no TOML here: " + std::string(problem.description()));
  }
  add_table(settings, root, "", 1);
  return settings;
}

}  // namespace shardplan
