#include "tools/from/file.h"

#include <algorithm>
#include <array>

#include "data/read/json_message.h"
#include "tools/from/log.h"
#include "tools/from/shell.h"
#include "tools/from/swift.h"
#include "tools/from/toml.h"
#include "tools/from/trainer.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

enum class Language { kShell, kYaml, kToml, kJson };
struct FileKind {
  std::string_view ending;
  Language language = Language::kShell;
};
constexpr std::array<FileKind, 8> kKinds = {{
    {.ending = ".sh", .language = Language::kShell},
    {.ending = ".bash", .language = Language::kShell},
    {.ending = ".slurm", .language = Language::kShell},
    {.ending = ".sbatch", .language = Language::kShell},
    {.ending = ".yaml", .language = Language::kYaml},
    {.ending = ".yml", .language = Language::kYaml},
    {.ending = ".toml", .language = Language::kToml},
    {.ending = ".json", .language = Language::kJson},
}};

// "run.sh:12" -> "run.sh" and 12.
std::int64_t take_line(std::string& path) {
  const std::size_t colon = path.rfind(':');
  if (colon == std::string::npos || colon + 1 == path.size() || path.size() - colon > 9 ||
      path.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return 0;
  }
  const std::int64_t line = std::stoll(path.substr(colon + 1));
  path.resize(colon);
  return line;
}

// Megatron-SWIFT's is a run of Megatron, whose table of arguments says which of them are switches.
RunSettings settings_of_yaml(const std::string& text, const std::string& file,
                             const std::vector<std::string>& set_words,
                             std::vector<std::string>& notes, const Library& library) {
  std::vector<std::string> variables;
  const std::vector<Setting> own = trainer_file(text, file, set_words, variables);
  if (!is_of_megatron_swift(own)) {
    return settings_from_yaml(text, file, set_words);
  }
  RunSettings settings = settings_of_swift_file(own, file, library, notes);
  settings.variables = std::move(variables);
  return settings;
}

}  // namespace

RunSettings settings_from_file(const std::string& path, std::vector<std::string>& notes,
                               ScriptRequest request, const Library& library) {
  std::string file = path;
  const std::int64_t line = take_line(file);
  const auto* const kind = std::ranges::find_if(
      kKinds, [&](const FileKind& each) { return file.ends_with(each.ending); });
  if (kind == kKinds.end() && line == 0) {
    TextFile log(file);
    request.path = file;
    if (std::optional<RunSettings> settings = settings_from_log(log, notes, library, request)) {
      return std::move(*settings);
    }
  }
  if (kind == kKinds.end() || (line > 0 && kind->language != Language::kShell)) {
    throw InputError("--from: found '" + path +
                     "', expected a file that ends in .sh, .bash, .slurm, .sbatch, .yaml, .yml, "
                     ".toml or .json, or a log that prints the arguments of Megatron-LM, the "
                     "configuration of torchtitan or, as `set -x` does, its command");
  }
  const std::string text = read_text_file(file);
  request.line = line;
  request.path = file;
  switch (kind->language) {
    case Language::kShell: return settings_from_shell(text, file, notes, request, library);
    case Language::kYaml: return settings_of_yaml(text, file, request.set_words, notes, library);
    case Language::kToml: {
      RunSettings settings = settings_from_toml(text, file);
      settings.is_configuration = true;
      return settings;
    }
    case Language::kJson: return settings_from_json(text, file);
  }
  throw std::logic_error("settings_from_file: unknown language");
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
  const auto has = [&value](const char* name) {
    return std::ranges::any_of(value.members,
                               [name](const JsonMember& member) { return member.name == name; });
  };
  if (value.kind == JsonKind::kObject && !has("zero_optimization")) {
    RunSettings flat = section_settings(value, file, RunFormat::kTransformers);
    if (is_of_trainer(flat.arguments)) {
      return settings_of_program({.own = std::move(flat.arguments), .file = file, .path = file});
    }
  }
  if (has("training") && has("parallelism")) {  // job.save_config_file
    return section_settings(value, file, RunFormat::kTorchtitan);
  }
  if (has("zero_optimization") || has("train_micro_batch_size_per_gpu") ||
      has("train_batch_size")) {
    return section_settings(value, file, RunFormat::kDeepspeed);
  }
  if (has("fsdp_config") || std::ranges::any_of(value.members, [](const JsonMember& member) {
        return member.name.starts_with("fsdp_") || member.name == "transformer_layer_cls_to_wrap";
      })) {  // transformers' fsdp_config
    return settings_of_fsdp(value, file);
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
  if (settings.format != RunFormat::kMegatron) {  // torchtitan's tyro takes both
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

void override_setting(RunSettings& settings, const ArgumentTable& table, Setting setting) {
  const std::string value = setting.values.empty() ? "true" : setting.values.front();
  setting.values.clear();
  const ArgumentRow* const row = find_row(table, setting.name);
  const bool is_megatron = settings.format == RunFormat::kMegatron;
  const bool is_list = row != nullptr && row->num_values != 0 && row->num_values != 1;
  std::erase_if(settings.arguments, [&](const Setting& each) { return each.name == setting.name; });
  if (value.empty() || (is_megatron && value == "false")) {
    return;
  }
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
