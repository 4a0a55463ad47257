#include "tools/from/launch.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/from/file.h"
#include "tools/from/swift.h"
#include "tools/from/toml.h"
#include "tools/from/trainer.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

// "$@" and its like: what the script's caller adds, which the file does not say.
bool is_callers(const std::string& word) {
  return word.starts_with("$@") || word.starts_with("$*") || word.starts_with("${@") ||
         word.starts_with("${*");
}

InputError no_argument(const std::string& opening, const std::string& word) {
  return InputError(opening + "found '" + word + "' behind the program's name" +
                    (word.starts_with('$') ? ", a variable that nothing in this file sets" : "") +
                    ", expected an argument such as --bf16");
}

std::vector<Setting> settings_of(const Launch& launch, std::vector<std::string>& notes) {
  std::vector<Setting> settings;
  const std::string opening = launch.place + ": ";
  for (const std::string& word : launch.arguments) {
    if (is_callers(word)) {
      notes.push_back(opening + word +
                      ": arguments of the script's caller, taken as none; --set adds "
                      "them");
    } else if (is_argument_name(word)) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      settings.push_back({.name = name, .values = {}, .place = opening + name + ": "});
      if (equals != std::string::npos) {
        settings.back().values.push_back(word.substr(equals + 1));
      }
    } else if (settings.empty() && word.starts_with('$') &&
               std::ranges::any_of(launch.arguments, is_argument_name)) {
      notes.push_back(opening + word +
                      ": a variable that nothing in the file sets, taken as empty");
    } else if (settings.empty()) {
      throw no_argument(opening, word);
    } else {
      settings.back().values.push_back(word);
    }
  }
  return settings;
}

// tyro: --training.seq_len 4096, --compile.enable, --compile.no-enable, lists divided by commas
// (torchtitan/config/manager.py).
Setting torchtitan_setting(const Setting& words) {
  Setting setting{.name = words.name.substr(2), .values = {}, .place = words.place};
  std::ranges::replace(setting.name, '-', '_');
  const std::size_t dot = setting.name.rfind('.') + 1;
  if (words.values.empty() && setting.name.compare(dot, 3, "no_") == 0) {
    setting.name.erase(dot, 3);
    setting.values = {"false"};
  } else if (!words.values.empty()) {
    std::string list;
    for (const std::string& each : words.values) { list += (list.empty() ? "" : ",") + each; }
    setting.values = {list};
  }
  return setting;
}

bool is_config(const Setting& setting) {
  return setting.name == "--job.config_file" || setting.name == "--job.config-file";
}

bool is_trainers(const Setting& setting) {
  return setting.name == "--model_name_or_path";
}

std::string config_text(const Setting& config, const std::string& path) {
  const std::string name = config.values.empty() ? "" : config.values.front();
  const std::string found = file_beside(name, path);
  if (found.empty()) {
    throw InputError(config.place + "found no file '" + shown(name, Encoding::kUnchecked) +
                     "' beside the script, expected torchtitan's configuration");
  }
  return read_text_file(found);
}

RunSettings torchtitan_settings(const std::vector<Setting>& words, const std::string& file,
                                const std::string& path, const Library& library) {
  const auto config = std::ranges::find_if(words, is_config);
  const std::string named = config->values.empty() ? file : config->values.front();
  RunSettings settings = settings_from_toml(config_text(*config, path), named);
  const ArgumentTable table = argument_table(library, "torchtitan");
  for (const Setting& each : words) {
    if (!is_config(each)) {
      override_setting(settings, table, torchtitan_setting(each));
    }
  }
  return settings;
}

// "--bf16 True" and "--bf16" are both on.
std::vector<Setting> trainer_settings(const std::vector<Setting>& words) {
  std::vector<Setting> own;
  for (const Setting& each : words) {
    Setting setting{.name = each.name.substr(2), .values = {"true"}, .place = each.place};
    std::ranges::replace(setting.name, '-', '_');
    if (!each.values.empty()) {
      const std::string word = in_lower_case(each.values.front());
      setting.values = {word == "true" || word == "false" ? word : each.values.front()};
    }
    own.push_back(std::move(setting));
  }
  return own;
}

// accelerate launch --config_file zero3.yaml train.py: what says DeepSpeed's part, unless the
// arguments do.
void add_configuration(const Launch& launch, std::vector<Setting>& own) {
  const bool is_given = std::ranges::find(own, "deepspeed", &Setting::name) != own.end();
  const auto option = std::ranges::find_if(launch.launcher, [](const std::string& word) {
    return word == "--config_file" || word == "--config-file";
  });
  if (!is_given && option != launch.launcher.end() && option + 1 != launch.launcher.end()) {
    own.push_back({.name = "deepspeed",
                   .values = {*(option + 1)},
                   .place = launch.place + ": " + *option + ": "});
  }
}

// "llamafactory-cli train sft.yaml", "src/train.py sft.yaml": the file is the training.
RunSettings yaml_settings(const Launch& launch, const std::string& path) {
  const std::string& name = launch.arguments.front();
  const std::string found = file_beside(name, path);
  if (found.empty()) {
    throw InputError(launch.place + ": found no file '" + shown(name, Encoding::kUnchecked) +
                     "' beside the script, expected the configuration of its training");
  }
  return settings_from_yaml(read_text_file(found), found);
}

}  // namespace

bool is_yaml_name(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

bool is_argument_name(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

RunSettings settings_of_launch(const Launch& launch, const std::string& file,
                               const std::string& path, const Library& library,
                               std::vector<std::string>& notes) {
  RunSettings settings;
  if (!launch.arguments.empty() && is_yaml_name(launch.arguments.front())) {
    settings = yaml_settings(launch, path);
    settings.num_gpus = launch.num_gpus > 0 ? launch.num_gpus : settings.num_gpus;
    return settings;
  }
  std::vector<Setting> arguments = settings_of(launch, notes);
  if (std::ranges::any_of(arguments, is_config)) {
    settings = torchtitan_settings(arguments, file, path, library);
  } else if (is_swift_program(launch.program)) {
    settings = settings_of_swift(arguments, file, library);
  } else if (is_swift_trainer(launch.program)) {
    settings = settings_of_swift_trainer(trainer_settings(arguments), file, path);
  } else if (std::ranges::any_of(arguments, is_trainers)) {
    std::vector<Setting> own = trainer_settings(arguments);
    add_configuration(launch, own);
    settings = settings_of_trainer(std::move(own), file, path);
  } else {
    settings.file = file;
    settings.arguments = std::move(arguments);
  }
  settings.num_gpus = launch.num_gpus > 0 ? launch.num_gpus : settings.num_gpus;
  return settings;
}

}  // namespace shardplan
