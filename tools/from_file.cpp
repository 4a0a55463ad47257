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

bool is_run_setting(const RunSettings& settings, const std::string& name) {
  const char mark = settings.format == RunFormat::kTorchtitan ? '.' : '-';
  return name.find(mark) != std::string::npos;
}

void override_setting(RunSettings& settings, const std::string& word) {
  const std::size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  if (settings.format == RunFormat::kMegatron && !name.starts_with("--")) {
    name.insert(0, "--");
  }
  Setting setting{.name = name, .values = {}, .place = "--set " + word + ": "};
  const std::string value = equals == std::string::npos ? "true" : word.substr(equals + 1);
  if (settings.format == RunFormat::kMegatron && value == "false") {
    std::erase_if(settings.arguments, [&](const Setting& each) { return each.name == name; });
    return;
  }
  if (settings.format == RunFormat::kTorchtitan || value != "true") {
    setting.values.push_back(value);
  }
  settings.arguments.push_back(std::move(setting));
}

}  // namespace shardplan
