#include "tools/screen/advise.h"

#include <algorithm>

#include "tools/commands/why_oom_changes.h"
#include "tools/report/advise.h"
#include "tools/report/text.h"
#include "tools/screen/job.h"

namespace shardplan {
namespace {

// Changes, single ones and pairs together, the fastest first.
std::vector<const Advice*> helpful(const AdviceResult& result) {
  std::vector<const Advice*> list;
  for (const std::vector<Advice>* part : {&result.singles, &result.pairs}) {
    for (const Advice& advice : *part) { list.push_back(&advice); }
  }
  if (list.empty()) {
    for (const Advice& advice : result.nearest) { list.push_back(&advice); }
    return list;
  }
  std::ranges::stable_sort(list, std::ranges::greater(), [](const Advice* advice) {
    return advice->changed.time.tokens_per_s_per_gpu;
  });
  return list;
}

std::string table(const Screen& screen, const AdviseReport& report,
                  const std::vector<const Advice*>& list, std::size_t most) {
  ScreenTable table = {
      .table = {.columns = {"tokens/s/GPU", "speed", "GiB used", "verdict", "change"}},
      .weights = {kMustStand, 40, 60, 50, kMustStand}};
  for (const Advice* advice : list) {
    const JudgedPlan& changed = advice->changed;
    if (table.table.rows.size() == most) {
      break;
    }
    table.table.rows.push_back(
        {whole(changed.time.tokens_per_s_per_gpu),
         report.result.base_valid ? speed_change(advice->speed_ratio) : std::string(),
         gib(basis_bytes(changed.memory, MemoryBasis::kDeviceUsed)),
         std::string(name_of(judged(report, changed).verdict)),
         changed_options(report.question, changed)});
  }
  return screen_table(screen, table);
}

std::string headline(const Screen& screen, const AdviseReport& report) {
  const Prediction& prediction = report.prediction;
  const AdviceResult& result = report.result;
  return verdict_line(screen, verdict_colour(prediction), verdict_words(prediction),
                      result.base_valid ? memory_words(result.base.job, result.base.memory)
                                        : one_line(prediction.reason));
}

std::string list_title(const AdviceResult& result) {
  const bool helps = !result.singles.empty() || !result.pairs.empty();
  const bool fits = result.base_valid && result.base.fits;
  if (helps) {
    return fits ? "Changes that make it faster, the fastest first"
                : "Changes that make it fit, the fastest first";
  }
  if (fits) {
    return "No single change and no pair makes it faster.";
  }
  return result.nearest.empty() ? "No single change and no pair makes it fit."
                                : "No single change and no pair makes it fit; the nearest:";
}

}  // namespace

std::string advise_screen(const Screen& screen, const AdviseReport& report) {
  const AdviceResult& result = report.result;
  std::vector<Block> blocks = {{kMustStand, headline(screen, report)}};
  if (result.base_valid) {
    blocks.push_back({kMustStand, screen_line(screen, "speed", speed_words(result.base.time), 2)});
  }
  blocks.push_back({40, job_rows(screen, report.question.job)});
  blocks.push_back({30, screen_line(screen, "tried",
                                    grouped(result.singles_tried - result.singles_invalid) +
                                        " valid changes and " +
                                        grouped(result.pairs_tried - result.pairs_invalid) +
                                        " pairs of them; those shown were estimated in full",
                                    2)});
  blocks.push_back({5, "\n"});
  blocks.push_back({kMustStand, screen_line(screen, "", list_title(result), 2)});
  const std::vector<const Advice*> list = helpful(result);
  const std::size_t table_at = blocks.size();
  blocks.push_back({kMustStand, ""});
  if (!list.empty()) {
    blocks.push_back({4, "\n"});
    blocks.push_back({kMustStand, command_rows(screen, command_of(report, list.front()->changed))});
  }
  blocks.push_back(
      {20, screen_line(screen, "more", "--details: all of it; --scaling: every axis", 1)});
  std::int64_t others = 0;
  for (const Block& block : blocks) { others += num_rows(block.text); }
  constexpr std::int64_t kFewest = 4;
  const std::int64_t room = std::max(kFewest, kMostRows - others - 1);
  if (!list.empty()) {
    blocks[table_at].text = table(screen, report, list, static_cast<std::size_t>(room));
  }
  return composed(std::move(blocks));
}

}  // namespace shardplan
