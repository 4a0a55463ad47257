#include "tools/report/run.h"

#include <algorithm>

#include "tools/report/report.h"
#include "tools/report/text.h"

namespace shardplan {

std::int64_t num_settings(const GivenRun& run, SettingEffect effect) {
  return std::ranges::count(run.reading.uses, effect, &SettingUse::effect);
}

std::string run_text(const GivenRun& run, Detail detail) {
  const auto count = [&](SettingEffect effect) {
    return std::to_string(num_settings(run, effect));
  };
  std::string text =
      "From " + run.file + ": " + std::to_string(run.reading.uses.size()) + " settings, " +
      count(SettingEffect::kRead) + " read, " + count(SettingEffect::kNone) +
      " without effect on memory, " + count(SettingEffect::kNotCounted) + " not counted, " +
      count(SettingEffect::kRefused) + " refused, " + count(SettingEffect::kUnknown) + " unknown\n";
  for (const SettingUse& use : run.reading.uses) {
    const bool always =
        use.effect == SettingEffect::kRefused || use.effect == SettingEffect::kUnknown;
    if (!always && detail != Detail::kRows) {
      continue;
    }
    text += "  ";
    text += padded_right(name_of(use.effect), 12);
    text += one_line(use.name);
    text += use.value.empty() ? "" : " ";
    text += one_line(use.value);
    text += use.meaning.empty() ? "" : ": ";
    text += use.meaning;
    text += "\n";
  }
  return text;
}

}  // namespace shardplan
