// A launch script: the one training that it starts, with what its launcher and its environment say.
// What the script leaves open is taken one way and tried the other ways: it is only asked for where
// a setting that matters depends on it.
#include "tools/from/shell.h"

#include "data/read/json_message.h"
#include "tools/from/argument_file.h"
#include "tools/from/file.h"
#include "tools/from/launch.h"
#include "tools/from/script_reader.h"
#include "tools/from/shell/launch.h"
#include "tools/from/shell/program.h"
#include "tools/from/shell/read_shell.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace shardplan {
namespace {

std::string from_variable(const std::string& file, const std::string& name) {
  return file + ": no command starts a .py file: the arguments in " + name +
         " are read, what another script adds is not known";
}

}  // namespace

ScriptReader::ScriptReader(std::string text, std::string file, const ScriptRequest& request,
                           const Library& library)
    : text_(std::move(text)),
      file_(std::move(file)),
      request_(request),
      library_(library),
      table_(argument_table(library, "megatron")),
      trainer_table_(argument_table(library, "transformers")) {
  given_.values = slurm_variables(text_, file_);
  for (const std::string& word : request.set_words) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) {
      given_.values[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  given_.read_file = [this](const std::string& path) { return file_beside(path); };
}

RunSettings ScriptReader::settings(std::vector<std::string>& notes) {
  ShellScript script = read_shell(text_, file_, given_);
  std::vector<Launch> trainings = chosen(script);
  for (int guards = 0; trainings.empty() && pass_guard(script, notes) && guards < 16; ++guards) {
    script = read_shell(text_, file_, given_);
    trainings = chosen(script);
  }
  const std::string variable = trainings.empty() && script.exits_at.empty()
                                   ? variable_with_arguments(script)
                                   : std::string();
  if (!variable.empty()) {  // as if the other script stood behind it
    notes.push_back(from_variable(file_, variable));
    text_ += "\n\npython pretrain_gpt.py ${" + variable + "[@]}\n";
    script = read_shell(text_, file_, given_);
    trainings = chosen(script);
  }
  if (trainings.empty()) {
    throw no_training(script);
  }
  Launch launch = the_one(trainings);
  for (const std::string& word : request_.set_words) {  // before it is looked for
    if (word.starts_with("deepspeed=") || word.starts_with("fsdp_config=")) {
      launch.arguments.push_back("--" + word);
    }
  }
  if (!variable.empty()) {
    launch.place = place_of_argument("--num-layers", text_, file_);
  }
  check_program(launch);
  check_arguments(launch, request_.set_words);
  check_choices(script, launch, notes);
  RunSettings settings = settings_of_launch(launch, file_, request_.path, library_, notes);
  note_program(launch, settings, notes);
  if (!launch.open_ranks.empty() && request_.num_gpus == 0) {
    notes.push_back(launch.place + ": " + launch.open_ranks +
                    ": the number of ranks is not known here, the cluster's GPUs are assumed; "
                    "--num-gpus says otherwise");
  }
  for (Setting& setting : settings.arguments) {
    if (!variable.empty()) {
      setting.place = place_of_argument(setting.name, text_, file_) + ": " + setting.name + ": ";
    }
  }
  settings.variables = {script.mentioned.begin(), script.mentioned.end()};
  for (const auto& [name, value] : launch.environment) {
    const auto line = script.export_line.find(name);
    settings.environment.push_back({.name = name, .values = {value}, .place = file_});
    settings.environment.back()
        .place.append(":")
        .append(std::to_string(line == script.export_line.end() ? launch.line : line->second))
        .append(": " + name + ": ");
  }
  return settings;
}

// A script that is named from here: as the path says, or by its name beside this file.
std::optional<std::string> ScriptReader::file_beside(const std::string& path) const {
  const std::filesystem::path folder = std::filesystem::path(request_.path).parent_path();
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool is_script = name.ends_with(".sh") || name.ends_with(".bash") ||
                         name.ends_with(".slurm") || name.ends_with(".sbatch") ||
                         name.ends_with(".env");
  if (!is_script || request_.path.empty()) {
    return std::nullopt;
  }
  // "$(pwd)/conf/a.sh": what is not known of it stands in front.
  const std::size_t known = path.find_last_of("$)`}");
  const std::size_t begin = known == std::string::npos ? 0 : path.find('/', known) + 1;
  for (const std::string& each : {path.substr(begin), name}) {
    std::error_code problem;
    const std::filesystem::path full = folder / each;
    const bool itself = std::filesystem::equivalent(full, request_.path, problem);
    if (!itself && std::filesystem::is_regular_file(full, problem)) {
      return read_text_file(full.string());
    }
  }
  return std::nullopt;
}

// Megatron-LM's, else the Trainer's: "--micro_batch_size" is its micro_batch_size.
const ArgumentRow* ScriptReader::row_of(const std::string& name) const {
  const ArgumentRow* const row = find_row(table_, name);
  if (row != nullptr || !name.starts_with("--")) {
    return row;
  }
  std::string bare = name.substr(2);
  std::ranges::replace(bare, '-', '_');
  return find_row(trainer_table_, bare);
}

// Whether the answer depends on it: not on what no table knows, but on torchtitan's "a.b".
bool ScriptReader::matters(const std::string& name) const {
  const ArgumentRow* const row = row_of(name);
  const bool counts = row == nullptr ? name.find('.') != std::string::npos
                                     : row->effect == SettingEffect::kRead ||
                                           row->effect == SettingEffect::kRefused;
  return counts && std::ranges::none_of(request_.set_words, [&](const std::string& word) {
           std::string set = word.substr(0, word.find('='));
           std::ranges::replace(set, '_', '-');
           return set == name || "--" + set == name;
         });
}

// By name, in order: what the training says of the settings that matter.
std::map<std::string, std::string> ScriptReader::told(const Launch& launch) const {
  std::map<std::string, std::string> values;
  std::string name;
  for (const std::string& word : launch.arguments) {
    if (is_argument_name(word) || name.empty()) {
      name = word.substr(0, word.find('='));
      values[name] = word;
      continue;
    }
    // "$MORE" behind all values of an argument is of more of them, and none where nothing sets
    // it.
    const ArgumentRow* const row = find_row(table_, name);  // of others a list may follow
    const bool is_full = row != nullptr && (row->num_values == 0 || values[name] != name);
    if (!word.starts_with('$') || !is_full) {
      values[name] += " " + word;
    }
  }
  std::erase_if(values, [&](const auto& each) { return !matters(each.first); });
  if (launch.num_gpus > 0 && request_.num_gpus == 0) {
    values[kNumGpus] = std::to_string(launch.num_gpus);
  }
  return values;
}

// Of the trainings those that differ, and that the user means.
std::vector<Launch> ScriptReader::chosen(const ShellScript& script) const {
  std::vector<Launch> all = trainings_of(script, request_.node_gpus);
  const bool trains =
      std::ranges::any_of(all, [](const Launch& each) { return !is_other_program(each.program); });
  std::vector<Launch> kept;
  for (Launch& each : all) {
    const bool is_meant = request_.line == 0 || each.line == request_.line;
    const bool is_other = trains && is_other_program(each.program);
    const bool is_known =
        std::ranges::any_of(kept, [&](const Launch& known) { return told(known) == told(each); });
    if (is_meant && !is_other && !is_known) {
      kept.push_back(std::move(each));
    }
  }
  return kept;
}

Launch ScriptReader::the_one(const std::vector<Launch>& trainings) const {
  if (trainings.size() == 1) {
    return trainings.front();
  }
  std::string places;
  const auto first = told(trainings.front());
  const auto second = told(trainings[1]);
  for (const Launch& each : trainings) {
    const std::string line = std::to_string(each.line);
    const std::string found = places + ",";
    if (found.find(" " + line + ",") == std::string::npos) {
      places += (places.empty() ? " " : ", ") + line;
    }
  }
  const auto said = [](const std::map<std::string, std::string>& told, const std::string& name) {
    const auto found = told.find(name);
    return found == told.end() ? "not given" : found->second;
  };
  auto either = first;
  either.insert(second.begin(), second.end());
  std::erase_if(either, [&](const auto& each) {
    return said(first, each.first) == said(second, each.first);
  });
  const std::string name = either.begin()->first;  // of trainings that are chosen all differ
  const bool lines = places.find(',') != std::string::npos;
  throw InputError(file_ + ": found " + std::to_string(trainings.size()) + " trainings, in line" +
                   (lines ? "s" : "") + places + ", that differ in " + name + " (" +
                   said(first, name) + ", or " + said(second, name) + "); expected one: " +
                   (lines ? "--from " + file_ + ":LINE chooses it"
                          : "--set NAME=VALUE of the variable that changes chooses it"));
}

RunSettings settings_from_shell(const std::string& text, const std::string& file,
                                std::vector<std::string>& notes, const ScriptRequest& request,
                                const Library& library) {
  return ScriptReader(text, file, request, library).settings(notes);
}

}  // namespace shardplan
