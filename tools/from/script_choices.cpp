// What a launch script leaves open: conditions that are taken one way, and tried the other.
#include "data/read/json_message.h"
#include "tools/from/script_reader.h"
#include "tools/from/script_words.h"
#include "tools/from/shell/launch.h"
#include "tools/from/shell/read_shell.h"

#include <algorithm>
#include <set>

namespace shardplan {

// An `if` that ends the script where something is missing is taken the other way.
bool ScriptReader::pass_guard(const ShellScript& script, std::vector<std::string>& notes) {
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

// A variable with another value in `other`; one that stands in `told` if there is one.
std::string ScriptReader::differing_variable(const ShellScript& script, const ShellScript& other,
                                             const std::string& told) {
  std::string any;
  for (const auto& [name, values] : other.variables) {
    const auto found = script.variables.find(name);
    const bool differs = found == script.variables.end() || found->second != values;
    if (!differs || values.empty() || !is_shell_name(name)) {
      continue;
    }
    if (!values.front().empty() &&
        (told.ends_with(" " + values.front()) || values.front().find(told) != std::string::npos)) {
      return name;
    }
    any = any.empty() ? name : any;
  }
  return any;
}

ScriptReader::Effect ScriptReader::effect_of(const ShellChoice& choice, int taken,
                                             const ShellScript& script,
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
std::string ScriptReader::answer_to(const Effect& effect) {
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
void ScriptReader::report(const ShellChoice& choice, const Effect& effect,
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

void ScriptReader::check_choices(const ShellScript& script, const Launch& launch,
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

}  // namespace shardplan
