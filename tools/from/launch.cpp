#include "tools/from/launch.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/from/accelerate.h"
#include "tools/from/file.h"
#include "tools/from/slime.h"
#include "tools/from/swift.h"
#include "tools/from/toml.h"
#include "tools/from/trainer.h"
#include "tools/from/trainer_command.h"
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

// "--bf16 True" and "--bf16" are both on, "--a 1 2" is a list.
std::vector<Setting> trainer_settings(const std::vector<Setting>& words) {
  std::vector<Setting> own;
  for (const Setting& each : words) {
    Setting setting{.name = each.name.substr(2), .values = {"true"}, .place = each.place};
    std::ranges::replace(setting.name, '-', '_');
    if (!each.values.empty()) {
      std::string list;
      for (const std::string& value : each.values) { list += (list.empty() ? "" : ", ") + value; }
      const std::string word = in_lower_case(list);
      setting.values = {word == "true" || word == "false" ? word : list};
    }
    own.push_back(std::move(setting));
  }
  return own;
}

std::string value_behind(const std::vector<std::string>& words,
                         std::initializer_list<std::string_view> names) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (const std::string_view name : names) {
      if (words[i] == name && i + 1 < words.size()) {
        return words[i + 1];
      }
      if (words[i].starts_with(std::string(name) + "=")) {
        return words[i].substr(name.size() + 1);
      }
    }
  }
  return "";
}

// accelerate launch --config_file zero3.yaml --zero_stage 3 train.py, and TRL's --accelerate_config
// behind its command.
std::vector<Setting> accelerate_settings(const Launch& launch, const std::string& path) {
  const std::string place = launch.place + ": ";
  std::vector<Setting> settings;
  std::string name = value_behind(launch.launcher, {"--config_file", "--config-file"});
  if (is_trl_program(launch.program)) {
    name = value_behind(launch.arguments, {"--accelerate_config"});
    settings = shipped_configuration(name, place + "--accelerate_config " + name + ": ");
  }
  if (!name.empty() && settings.empty()) {
    const std::string found = file_beside(name, path);
    if (found.empty()) {
      throw InputError(place + "--config_file: found no file '" +
                       shown(name, Encoding::kUnchecked) +
                       "', nor one of its name beside this one, expected accelerate's");
    }
    settings = accelerate_file(read_text_file(found), found);
  }
  const bool is_launched = std::ranges::any_of(
      launch.launcher, [](const std::string& word) { return word.ends_with("accelerate"); });
  if (is_launched) {
    const std::vector<Setting> words = settings_of_launcher(launch.launcher, launch.place);
    settings.insert(settings.end(), words.begin(), words.end());
  }
  return settings;
}

// ms-swift divides the layers of one process over the GPUs that it sees.
void add_device_map(const Launch& launch, std::vector<Setting>& own) {
  const auto visible = launch.environment.find("CUDA_VISIBLE_DEVICES");
  const bool is_one = launch.environment.contains("NPROC_PER_NODE") ||
                      launch.environment.contains("NNODES") ||
                      !launch.program.starts_with("swift ");
  if (!is_one && visible != launch.environment.end() &&
      visible->second.find(',') != std::string::npos) {
    own.push_back({.name = "device_map",
                   .values = {"over GPUs " + visible->second},
                   .place = launch.place + ": CUDA_VISIBLE_DEVICES: "});
  }
}

// Words behind a file of settings: "--output_dir out", and LLaMA-Factory's "bf16=true".
std::vector<Setting> words_over(const Launch& launch, const std::string& config,
                                std::vector<std::string>& notes) {
  Launch rest = launch;
  std::erase(rest.arguments, config);
  for (std::string& word : rest.arguments) {
    const bool is_assignment = !word.starts_with('-') && word.find('=') != std::string::npos;
    word = is_assignment ? "--" + word : word;
  }
  std::vector<Setting> own = trainer_settings(settings_of(rest, notes));
  std::erase_if(
      own, [](const Setting& each) { return each.name == "config" || each.name == "config_file"; });
  return own;
}

// The training of a file, with the words of its command over it.
RunSettings yaml_settings(const Launch& launch, const std::string& config, const std::string& path,
                          const Library& library, std::vector<std::string>& notes) {
  const std::string found = file_beside(config, path);
  if (found.empty()) {
    throw InputError(launch.place + ": found no file '" + shown(config, Encoding::kUnchecked) +
                     "' beside the script, expected the configuration of its training");
  }
  const std::string text = read_text_file(found);
  std::vector<std::string> variables;
  std::vector<Setting> own = trainer_file(text, found, {}, variables);
  if (own.empty()) {
    return settings_from_yaml(text, found);
  }
  const std::vector<Setting> over = words_over(launch, config, notes);
  own.insert(own.end(), over.begin(), over.end());
  if (is_swift_program(launch.program)) {
    return settings_of_swift_file(own, found, library, notes);
  }
  const bool is_known =
      is_of_trainer(own) || is_trl_program(launch.program) || is_swift_trainer(launch.program);
  if (!is_known) {
    return settings_from_yaml(text, found);
  }
  TrainerWords words = {.own = std::move(own), .file = found, .path = found};
  add_device_map(launch, words.own);
  words.launcher = accelerate_settings(launch, path);
  words.project = project_of_command(launch, words.own);
  add_task(launch, words.own);
  return settings_of_program(std::move(words));
}

}  // namespace

bool is_yaml_name(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

bool is_argument_name(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

std::string configuration_of(const Launch& launch) {
  if (!launch.arguments.empty() && is_yaml_name(launch.arguments.front())) {
    return launch.arguments.front();
  }
  const std::string named =
      value_behind(launch.arguments, {"--config", "--config_file", "--config-file"});
  return is_yaml_name(named) ? named : "";
}

RunSettings settings_of_launch(const Launch& launch, const std::string& file,
                               const std::string& path, const Library& library,
                               std::vector<std::string>& notes) {
  RunSettings settings;
  if (const std::string config = configuration_of(launch); !config.empty()) {
    settings = yaml_settings(launch, config, path, library, notes);
    settings.num_gpus = launch.num_gpus > 0 ? launch.num_gpus : settings.num_gpus;
    return settings;
  }
  std::vector<Setting> arguments = settings_of(launch, notes);
  if (std::ranges::any_of(arguments, is_config)) {
    settings = torchtitan_settings(arguments, file, path, library);
  } else if (is_swift_program(launch.program)) {
    settings = settings_of_swift(arguments, file, library, notes);
  } else if (is_supervised_slime(launch.arguments)) {
    settings = settings_of_slime(arguments, file, notes);
  } else if (starts_trainer(launch)) {
    TrainerWords words = {.own = trainer_settings(arguments), .file = file, .path = path};
    add_device_map(launch, words.own);
    words.launcher = accelerate_settings(launch, path);
    words.project = project_of_command(launch, words.own);
    add_task(launch, words.own);
    settings = settings_of_program(std::move(words));
  } else {
    settings.file = file;
    settings.arguments = std::move(arguments);
  }
  settings.num_gpus = launch.num_gpus > 0 ? launch.num_gpus : settings.num_gpus;
  return settings;
}

}  // namespace shardplan
