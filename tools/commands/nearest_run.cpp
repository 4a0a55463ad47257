#include "tools/commands/nearest_run.h"

#include <algorithm>
#include <string>

#include "data/read/input_error.h"
#include "tools/options/command_words.h"

namespace shardplan {
namespace {

// Of the run's settings the longest name that begins the reason; nullptr: no setting does.
const SettingUse* refusing_setting(const RunReading& run) {
  constexpr std::string_view kBefore = "unsupported: ";
  const std::string_view reason = run.unsupported;
  const SettingUse* found = nullptr;
  for (const SettingUse& use : run.uses) {
    const bool begins =
        reason.starts_with(kBefore) && reason.substr(kBefore.size()).starts_with(use.name);
    const std::size_t end = kBefore.size() + use.name.size();
    const bool is_whole =
        begins && end < reason.size() && (reason[end] == ' ' || reason[end] == ':');
    if (is_whole && (found == nullptr || use.name.size() > found->name.size())) {
      found = &use;
    }
  }
  return found;
}

std::string bare(const std::string& name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

}  // namespace

std::optional<NearestRun> nearest_run(const EstimateReport& report, const Options& options,
                                      const Library& library) {
  constexpr std::size_t kMostSettings = 4;
  NearestRun nearest;
  Options other = options;
  Question question = report.question;
  while (question.run && !question.run->reading.unsupported.empty()) {
    const SettingUse* const setting = refusing_setting(question.run->reading);
    if (setting == nullptr || nearest.left_out.size() == kMostSettings) {
      return std::nullopt;
    }
    nearest.left_out.push_back(setting->name +
                               (setting->value.empty() ? "" : " " + setting->value));
    other.values["set"].push_back(bare(setting->name) + "=");
    try {
      question = question_of(other, library);
    } catch (const InputError&) {
      return std::nullopt;  // what is left is asked for more than the file says
    }
  }
  if (nearest.left_out.empty()) {
    return std::nullopt;
  }
  nearest.prediction = predict_question(question, report.rule);
  if (!nearest.prediction.has_numbers()) {
    return std::nullopt;
  }
  nearest.job = question.job;
  nearest.command = command_text(other, "estimate");
  return nearest;
}

}  // namespace shardplan
