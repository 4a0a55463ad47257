#include "tools/screen/estimate.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "estimator/frameworks/framework.h"
#include "tools/report/estimate_table.h"
#include "tools/report/lines.h"
#include "tools/report/run.h"
#include "tools/report/sweep.h"
#include "tools/report/text.h"
#include "tools/screen/bars.h"
#include "tools/screen/job.h"

namespace shardplan {
namespace {

// A setting that nothing describes matters more than most of the answer.
std::string run_rows(const Screen& screen, const GivenRun& run) {
  const std::string text = run_text(run, Detail::kTotals);
  return rewrapped(screen, text.substr(0, text.find('\n') + 1), 2) +
         rewrapped(screen, text.substr(text.find('\n') + 1), 1);
}

std::string decisive_rows(const Screen& screen, const std::vector<StatedAssumption>& assumptions) {
  constexpr std::int64_t kMost = 2;
  std::string rows;
  std::int64_t decisive = 0;
  for (const StatedAssumption& assumption : assumptions) {
    if (assumption.decides && ++decisive <= kMost) {
      rows += screen_line(screen, decisive == 1 ? "decides" : " ", assumption.text, 2);
    }
  }
  return decisive <= kMost ? rows
                           : rows + screen_line(screen, " ",
                                                "and " + grouped(decisive - kMost) +
                                                    " more assumptions that decide the verdict");
}

std::string refusal(const Screen& screen, const EstimateReport& report) {
  const Prediction& prediction = report.prediction;
  constexpr std::string_view kRepeated = "unsupported: ";  // the first word says so
  const bool repeats = prediction.reason.starts_with(kRepeated);
  return verdict_line(screen, verdict_colour(prediction), verdict_words(prediction),
                      prediction.reason.substr(repeats ? kRepeated.size() : 0));
}

std::string nearest_rows(const Screen& screen, const NearestRun& nearest) {
  return screen_line(screen, "without",
                     joined(nearest.left_out) + ": " + verdict_words(nearest.prediction) + "  " +
                         memory_words(nearest.job, nearest.prediction.memory) + "; " +
                         speed_words(nearest.prediction.time),
                     4) +
         command_rows(screen, nearest.command);
}

std::string rule_row(const Screen& screen, const EstimateReport& report) {
  const Judgement& judged = *report.prediction.judged;
  return screen_line(screen, judged.check.kept() ? "rule" : "broken",
                     share_text(report.question.job, report.prediction.memory, report.rule), 2);
}

std::string maximum_rows(const Screen& screen, const Maximum& maximum) {
  std::string rows;
  for (const std::string& words : maximum_words(maximum)) {
    rows += screen_line(screen, rows.empty() ? "find-max" : " ", words, 3);
  }
  return rows;
}

}  // namespace

std::string estimate_screen(const Screen& screen, const EstimateReport& report) {
  const Prediction& prediction = report.prediction;
  const Question& question = report.question;
  const Job& job = question.job;
  const std::string run = question.run ? run_rows(screen, *question.run) : "";
  if (!prediction.has_numbers()) {
    return composed({{kMustStand, refusal(screen, report)},
                     {60, report.nearest ? nearest_rows(screen, *report.nearest) : ""},
                     {50, run}});
  }
  const MemoryEstimate& memory = prediction.memory;
  const auto line = [&](int weight, std::string_view label, const std::string& text,
                        std::int64_t most_rows) {
    return Block{weight, screen_line(screen, label, text, most_rows)};
  };
  std::vector<Block> blocks = {
      {kMustStand, verdict_line(screen, verdict_colour(prediction), verdict_words(prediction),
                                memory_words(job, memory))},
      line(kMustStand, "speed", speed_words(prediction.time), 2)};
  if (report.evidence && report.evidence->near_card.runs() > 0) {
    blocks.push_back(line(60, "near", near_card_words(*report.evidence, job.profile.name), 2));
  }
  if (memory.fit != Fit::kFits) {
    blocks.push_back(line(70, "why", prediction.reason, 4));
  }
  if (const std::int64_t host = host_bytes(job, question.plan); host > 0) {
    blocks.push_back(line(66, "host",
                          gib(host) + " GiB a rank for what is offloaded, " +
                              gib(host * job.cluster.gpus_per_node) + " a node",
                          2));
  }
  if (report.rule.is_asked || !prediction.judged->check.kept()) {
    blocks.push_back({65, rule_row(screen, report)});
  }
  if (report.maximum) {
    blocks.push_back({kMustStand, maximum_rows(screen, *report.maximum)});
  }
  blocks.push_back({55, run});
  blocks.push_back({40, job_rows(screen, job)});
  blocks.push_back(line(80, "plan", plan_words(report) + "  (* assumed)", 3));
  blocks.push_back({10, "\n"});
  blocks.push_back({kMustStand, stage_bars(screen, job, memory)});
  blocks.push_back({5, "\n"});
  blocks.push_back(line(50, "step", step_words(prediction.time), 2));
  blocks.push_back({75, decisive_rows(screen, report.assumptions)});
  blocks.push_back(line(52, "network", network_words(job.cluster), 2));
  if (report.cost) {
    blocks.push_back({85, rewrapped(screen, cost_lines(*report.cost), 2)});
  }
  if (report.evidence) {
    blocks.push_back(line(51, "sure?", evidence_words(*report.evidence), 3));
  }
  blocks.push_back(
      line(20, "more", "--details: every assumption and total; --explain: every tensor", 1));
  return composed(std::move(blocks));
}

}  // namespace shardplan
