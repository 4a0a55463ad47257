#include "tools/from_file.h"

#include <algorithm>
#include <array>

#include "data/json_message.h"

namespace shardplan {
namespace {

struct FileKind {
  std::string_view ending;
  RunSettings (*read)(const std::string& text, const std::string& file,
                      std::vector<std::string>& notes);
};

constexpr auto kYaml = [](const std::string& text, const std::string& file,
                          std::vector<std::string>&) { return settings_from_yaml(text, file); };
constexpr auto kToml = [](const std::string& text, const std::string& file,
                          std::vector<std::string>&) { return settings_from_toml(text, file); };
constexpr auto kJson = [](const std::string& text, const std::string& file,
                          std::vector<std::string>&) { return settings_from_json(text, file); };

const std::array<FileKind, 8> kKinds = {{
    {.ending = ".sh", .read = settings_from_shell},
    {.ending = ".bash", .read = settings_from_shell},
    {.ending = ".slurm", .read = settings_from_shell},
    {.ending = ".sbatch", .read = settings_from_shell},
    {.ending = ".yaml", .read = kYaml},
    {.ending = ".yml", .read = kYaml},
    {.ending = ".toml", .read = kToml},
    {.ending = ".json", .read = kJson},
}};

}  // namespace

RunSettings settings_from_file(const std::string& path, std::vector<std::string>& notes) {
  const auto kind = std::ranges::find_if(
      kKinds, [&](const FileKind& each) { return path.ends_with(each.ending); });
  if (kind == kKinds.end()) {
    throw InputError("--from: found '" + path +
                     "', expected a file that ends in .sh, .bash, .slurm, .sbatch, .yaml, .yml, "
                     ".toml or .json");
  }
  return kind->read(read_text_file(path), path, notes);
}

// {"arguments": ..., "environment": ...}, or the arguments alone as an object or a list.
RunSettings settings_from_json(const std::string& text, const std::string& file) {
  JsonValue value = parse_json(text, file);
  const auto is_arguments = [](const JsonMember& member) { return member.name == "arguments"; };
  const bool whole =
      value.kind == JsonKind::kObject && std::ranges::any_of(value.members, is_arguments);
  if (whole) {
    return run_settings(value, file);
  }
  if (value.kind != JsonKind::kObject && value.kind != JsonKind::kArray) {
    throw InputError(place(file, value.line, value.pointer) + "found " + describe(value) +
                     ", expected the arguments of a run as an object or a list");
  }
  JsonValue wrapped;
  wrapped.kind = JsonKind::kObject;
  wrapped.members.push_back({.name = "arguments", .value = std::move(value)});
  return run_settings(wrapped, file);
}

std::string argument_named(const RunSettings& settings, const ArgumentTable& table,
                           const std::string& name) {
  const auto known = [&](const std::string& each) {
    return find_row(table, each) != nullptr ||
           std::ranges::find(settings.arguments, each, &Setting::name) != settings.arguments.end();
  };
  std::string spelled = name;
  if (settings.format == RunFormat::kTorchtitan) {  // tyro takes both
    std::ranges::replace(spelled, '-', '_');
    return known(spelled) ? spelled : "";
  }
  if (!spelled.starts_with("--")) {
    spelled.insert(0, "--");
  }
  if (!known(spelled)) {
    std::ranges::replace(spelled, '_', '-');
  }
  return known(spelled) ? spelled : "";
}

void override_setting(RunSettings& settings, const ArgumentTable& table,
                      const std::string& argument, const std::string& word) {
  const std::size_t equals = word.find('=');
  const std::string value = equals == std::string::npos ? "true" : word.substr(equals + 1);
  const ArgumentRow* const row = find_row(table, argument);
  const bool is_megatron = settings.format == RunFormat::kMegatron;
  const bool is_list = row != nullptr && row->num_values != 0 && row->num_values != 1;
  if ((is_megatron && value == "false") || (is_list && value.empty())) {
    std::erase_if(settings.arguments, [&](const Setting& each) { return each.name == argument; });
    return;
  }
  Setting setting{.name = argument, .values = {}, .place = "--set " + word + ": "};
  if (is_list) {
    std::size_t start = 0;
    while ((start = value.find_first_not_of(" ,", start)) != std::string::npos) {
      const std::size_t end = std::min(value.find_first_of(" ,", start), value.size());
      setting.values.push_back(value.substr(start, end - start));
      start = end;
    }
  } else if (!is_megatron || value != "true") {
    setting.values.push_back(value);
  }
  settings.arguments.push_back(std::move(setting));
}

}  // namespace shardplan
