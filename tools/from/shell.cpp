// A launch script: the one training that it starts, with what its launcher and its environment say.
// What the script leaves open is taken one way and tried the other ways: it is only asked for where
// a setting that matters depends on it.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "data/read/json_message.h"
#include "tools/from/argument_file.h"
#include "tools/from/file.h"
#include "tools/from/launch.h"
#include "tools/from/shell/launch.h"
#include "tools/from/shell/program.h"

namespace shardplan {
namespace {

constexpr const char* kNumGpus = "the number of GPUs";  // among what a training says of itself

std::string from_variable(const std::string& file, const std::string& name) {
  return file + ": no command starts a .py file: the arguments in " + name +
         " are read, what another script adds is not known";
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) { text += (text.empty() ? "$" : ", $") + name; }
  return text;
}

// What gives a variable; "$2" is an argument of the script, whose caller may be a script too.
std::string set_of(const std::string& name) {
  const bool is_argument = name.find_first_not_of("0123456789") == std::string::npos;
  return "--set " + name + "=VALUE" +
         (is_argument ? ", or --from a script beside it that starts it with its arguments" : "");
}

class ScriptReader {
 public:
  ScriptReader(std::string text, std::string file, const ScriptRequest& request,
               const Library& library)
      : text_(std::move(text)),
        file_(std::move(file)),
        request_(request),
        library_(library),
        table_(argument_table(library, "megatron")) {
    given_.values = slurm_variables(text_, file_);
    for (const std::string& word : request.set_words) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) {
        given_.values[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
    given_.read_file = [this](const std::string& path) { return file_beside(path); };
  }

  RunSettings settings(std::vector<std::string>& notes) {
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
      if (word.starts_with("deepspeed=")) {
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

 private:
  // A script that is named from here: as the path says, or by its name beside this file.
  std::optional<std::string> file_beside(const std::string& path) const {
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

  // Whether the answer depends on it: not on what no table knows, but on torchtitan's "a.b".
  bool matters(const std::string& name) const {
    const ArgumentRow* const row = find_row(table_, name);
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
  std::map<std::string, std::string> told(const Launch& launch) const {
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
      const ArgumentRow* const row = find_row(table_, name);
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
  std::vector<Launch> chosen(const ShellScript& script) const {
    std::vector<Launch> all = trainings_of(script, request_.node_gpus);
    const bool trains = std::ranges::any_of(
        all, [](const Launch& each) { return !is_other_program(each.program); });
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

  Launch the_one(const std::vector<Launch>& trainings) const {
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

  // An `if` that ends the script where something is missing is taken the other way.
  bool pass_guard(const ShellScript& script, std::vector<std::string>& notes) {
    if (script.exits_at.empty() || script.choices.empty()) {
      return false;
    }
    const ShellChoice& last = script.choices.back();
    const bool is_guard = last.alternatives == 2 && (last.taken == 1 || last.missing.empty());
    if (!is_guard || given_.choices.contains(last.key)) {
      return false;
    }
    given_.choices[last.key] = 1 - last.taken;
    notes.push_back(last.place + ": '" + last.text + "' is taken as " +
                    (last.taken == 1 ? "false" : "true") + ", else the script exits in " +
                    script.exits_at);
    return true;
  }

  InputError no_training(const ShellScript& script) const {
    if (const std::string other = other_trainer(script); !other.empty()) {
      return InputError(file_ + ": found " + other);
    }
    std::set<std::string> missing;
    for (const ShellChoice& choice : script.choices) {
      missing.insert(choice.missing.begin(), choice.missing.end());
    }
    missing.erase("*");  // all arguments: --set gives one at a time
    missing.erase("@");
    std::string text = file_ + ": found no command that starts a .py file with arguments, ";
    if (request_.line > 0) {
      text += "in line " + std::to_string(request_.line) + ", ";
    }
    if (!script.exits_at.empty()) {
      text = script.exits_at + ": found that the script exits here, before it trains, ";
    }
    if (!missing.empty()) {
      return InputError(text + "where nothing sets " + listed(missing) + "; expected " +
                        set_of(*missing.begin()));
    }
    if (!script.exits_at.empty()) {
      return InputError(text +
                        "expected its first argument, --set 1=VALUE, or --set NAME=VALUE of "
                        "what it checks");
    }
    if (!script.unread.empty()) {
      return InputError(text + "and did not find the file of " + script.unread.front() +
                        "; expected it beside this one");
    }
    return InputError(text +
                      "expected one such as torchrun --nproc_per_node 8 pretrain_gpt.py "
                      "--num-layers 32 ...");
  }

  // What another way of one choice changes in the settings that matter.
  struct Effect {
    std::string name;       // of the first setting; "" for none
    bool resolves = false;  // a value that is known then, and is not now
    std::string variable;   // whose value is another then; "" for none
  };

  // A variable with another value in `other`; one that stands in `told` if there is one.
  static std::string differing_variable(const ShellScript& script, const ShellScript& other,
                                        const std::string& told) {
    std::string any;
    for (const auto& [name, values] : other.variables) {
      const auto found = script.variables.find(name);
      const bool differs = found == script.variables.end() || found->second != values;
      if (!differs || values.empty() || !is_shell_name(name)) {
        continue;
      }
      if (!values.front().empty() && (told.ends_with(" " + values.front()) ||
                                      values.front().find(told) != std::string::npos)) {
        return name;
      }
      any = any.empty() ? name : any;
    }
    return any;
  }

  Effect effect_of(const ShellChoice& choice, int taken, const ShellScript& script,
                   const std::map<std::string, std::string>& now) const {
    Effect effect;
    ShellGiven given = given_;
    given.choices[choice.key] = taken;
    const ShellScript other = read_shell(text_, file_, given);
    const std::vector<Launch> trainings = chosen(other);
    if (trainings.empty()) {
      return effect;
    }
    const std::map<std::string, std::string> then = told(trainings.front());
    for (const auto& [name, value] : then) {
      const auto found = now.find(name);
      if (found != now.end() && found->second == value) {
        continue;
      }
      effect.name = effect.name.empty() ? name : effect.name;
      const bool is_open = found != now.end() && found->second.find('$') != std::string::npos;
      effect.resolves = effect.resolves || (is_open && value.find('$') == std::string::npos);
    }
    for (const auto& [name, value] : now) {
      effect.name = effect.name.empty() && !then.contains(name) ? name : effect.name;
    }
    if (!effect.name.empty()) {
      const auto value = then.find(effect.name);
      effect.variable = differing_variable(script, other, value == then.end() ? "" : value->second);
    }
    return effect;
  }

  // The options that decide what differs.
  static std::string answer_to(const Effect& effect) {
    const bool is_number = effect.name == kNumGpus;
    if (is_number && effect.variable.empty()) {
      return "--num-gpus N";
    }
    const std::string variable = effect.variable.empty()
                                     ? effect.name.substr(effect.name.find_first_not_of('-'))
                                     : effect.variable;
    return "--set " + variable + "=VALUE" + (is_number ? " or --num-gpus N" : "");
  }

  // An error where the choice must be made, else a note.
  static void report(const ShellChoice& choice, const Effect& effect,
                     std::vector<std::string>& notes) {
    const std::string what = choice.place + ": '" + choice.text + "'";
    const std::string depends = effect.name + " depends on it";
    if (choice.missing.empty()) {
      throw InputError(what + ": found a condition that cannot be decided here, and " + depends +
                       "; expected " + answer_to(effect));
    }
    const std::string set = set_of(*choice.missing.begin());
    if (effect.resolves) {
      throw InputError(what + ": found that nothing sets " + listed(choice.missing) + ", and " +
                       depends + "; expected " + set);
    }
    notes.push_back(what + ": nothing sets " + listed(choice.missing) + ", taken as empty, and " +
                    depends + "; " + set + " says otherwise");
  }

  void check_choices(const ShellScript& script, const Launch& launch,
                     std::vector<std::string>& notes) const {
    constexpr std::size_t kMostReadings = 256;
    constexpr std::size_t kMostSteps = std::size_t{1} << 32;  // of all readings: some seconds
    const std::size_t most =
        std::min(kMostReadings, kMostSteps / std::max<std::size_t>(script.steps, 1));
    const std::map<std::string, std::string> now = told(launch);
    std::set<std::set<std::string>> said;  // missing variables, once each
    std::size_t readings = 0;
    for (const ShellChoice& choice : script.choices) {
      Effect effect;
      for (int taken = 0; taken < choice.alternatives && readings < most; ++taken) {
        if (taken != choice.taken && effect.name.empty()) {
          effect = effect_of(choice, taken, script, now);
          ++readings;
        }
      }
      const bool is_clusters =  // or not stated, which is the cluster's too
          effect.name == kNumGpus &&
          (launch.num_gpus == request_.cluster_gpus || launch.num_gpus == 0);
      if (effect.name.empty() || is_clusters || given_.choices.contains(choice.key) ||
          (!choice.missing.empty() && !said.insert(choice.missing).second)) {
        continue;
      }
      report(choice, effect, notes);
    }
    if (readings == most) {
      notes.push_back(file_ + ": of its conditions the first " + std::to_string(readings) +
                      " were tried the other way, which those behind them were not");
    }
  }

  std::string text_;
  const std::string file_;
  const ScriptRequest& request_;
  const Library& library_;
  const ArgumentTable table_;
  ShellGiven given_;
};

}  // namespace

RunSettings settings_from_shell(const std::string& text, const std::string& file,
                                std::vector<std::string>& notes, const ScriptRequest& request,
                                const Library& library) {
  return ScriptReader(text, file, request, library).settings(notes);
}

}  // namespace shardplan
