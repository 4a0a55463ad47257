#include "data/arguments/trainer_targets.h"

#include <algorithm>
#include <string_view>

#include "data/arguments/trainer.h"
#include "data/models/modules.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

// peft takes a string for a regular expression of whole names, a list for their ends.
bool is_pattern(const std::string& text) {
  return !text.starts_with('[') && text.find_first_of("\\()*+?^$|") != std::string::npos;
}

FittedTargets fitted(const RunArguments& arguments, const char* setting, const RunReading& run) {
  const ModelSpec& model = run.job.model;
  if (setting == nullptr) {
    return fit_names(model, default_targets(model));
  }
  const std::string text = arguments.text_or(setting, "");
  return is_pattern(text)
             ? fit_pattern(model, text, std::string(arguments.error(setting, "").what()))
             : fit_names(model, names_in(text));
}

}  // namespace

std::vector<std::string> names_in(const std::string& text) {
  constexpr std::string_view kBetween = " ,[]'\"";
  std::vector<std::string> names;
  std::size_t begin = 0;
  while ((begin = text.find_first_not_of(kBetween, begin)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return names;
}

void read_named_targets(const RunArguments& arguments, const char* setting, RunReading& run) {
  if (run.job.model.layers.empty()) {  // of a model that is not known yet
    return;
  }
  const FittedTargets found = fitted(arguments, setting, run);
  const std::string shown_targets =
      setting == nullptr ? "lora_target_modules: nothing" : shown_setting(arguments, setting);
  const std::string& model = run.job.model.name;
  const bool has_none = std::ranges::none_of(found.targets.on, [](bool is_on) { return is_on; });
  if (!found.in_part.empty()) {
    refuse(run, shown_targets + ": an adapter on " + found.in_part +
                    " and none on others like it; those of all layers are described together");
  } else if (has_none) {
    refuse(run, shown_targets + ": no linear layer of " + model + " has such a name, as " +
                    linear_modules(run.job.model, 0).front().path);
  } else if (!found.unfit.empty()) {
    run.notes.push_back(shown_targets + ": " + shown(joined(found.unfit), Encoding::kUnchecked) +
                        (found.unfit.size() == 1 ? " fits" : " fit") + " no linear layer of " +
                        model + ", where peft puts no adapter");
  }
  set_targets(run.job.adapters, found.targets);
}

}  // namespace shardplan
