#include "tools/screen/why_oom.h"

#include <algorithm>

#include "tools/commands/verdict.h"
#include "tools/options/command_words.h"
#include "tools/report/text.h"
#include "tools/report/why_oom.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMostMatches = 3;
constexpr std::size_t kMostFailures = 2;

// The tensors that may be meant, the likeliest first.
std::string match_rows(const Screen& screen, const OomDiagnosis& diagnosis) {
  if (diagnosis.small_rows > 0) {
    return screen_line(screen, "",
                       "small tensors share segments of this size: memory was full, "
                       "no one tensor is to blame",
                       2);
  }
  if (diagnosis.matches.empty()) {
    return diagnosis.eager_score_bytes > 0
               ? ""
               : screen_line(screen, "",
                             "no match: no tensor of this estimate has that size; the run's "
                             "arguments may differ from these",
                             3);
  }
  ScreenTable table = {
      .table = {.columns = {"tensor", "GiB", "stage", "full to GiB", "of", "when"}},
      .weights = {kMustStand, 50, 20, 40, 30, kMustStand}};
  for (const RowMatch& match : diagnosis.matches) {
    if (std::ssize(table.table.rows) == kMostMatches) {
      break;
    }
    table.table.rows.push_back({match.row, gib(match.bytes), match.stage, gib(match.device_bytes),
                                gib(diagnosis.capacity_bytes), match.levels.moment});
  }
  const std::int64_t more = std::ssize(diagnosis.matches) - std::ssize(table.table.rows);
  return screen_table(screen, table) +
         (more > 0 ? screen_line(screen, "", "and " + grouped(more) + " more of that size") : "");
}

std::string change_words(const PlanChange& change) {
  return change.text;
}

std::string change_table(const Screen& screen, const WhyOomReport& report, std::int64_t most) {
  ScreenTable table = {.table = {.columns = {"verdict", "GiB used", "step s", "change"}},
                       .weights = {50, 60, 70, kMustStand}};
  for (const PlanChange& change : report.changes) {
    if (std::ssize(table.table.rows) == most) {
      break;
    }
    const MemoryEstimate& memory = change.judged.memory;
    table.table.rows.push_back(
        {std::string(name_of(verdict_of(change.judged.job, memory, MemoryRule{}))),
         gib(basis_bytes(memory, MemoryBasis::kDeviceUsed)), fixed(change.judged.time.total_s, 3),
         change_words(change)});
  }
  return screen_table(screen, table);
}

// `shardplan estimate` of the first change, where options said what the run is.
std::string first_command(const WhyOomReport& report) {
  if (report.changes.empty() || given(report.options, "case")) {
    return "";
  }
  const std::string& words = report.changes.front().text;
  return command_text(with_option_words(report.options, words.substr(0, words.find(" ("))),
                      "estimate");
}

// One row of what the log and the estimate say is held.
Block held_block(const Screen& screen, const OomDiagnosis& diagnosis, const WhyOomReport& report) {
  return {45, rewrapped(screen, oom_held(diagnosis, report), 2)};
}

}  // namespace

std::string why_oom_screen(const Screen& screen, const WhyOomReport& report) {
  if (report.diagnoses.empty()) {
    return rewrapped(screen, oom_absence(report), kMostRows);
  }
  std::string verdict = oom_verdict(report);
  std::ranges::replace(verdict, '\n', ' ');
  std::vector<Block> blocks = {{kMustStand, screen_line(screen, "", verdict, 5)}};
  for (std::size_t i = 0; i < std::min(report.diagnoses.size(), kMostFailures); ++i) {
    const OomDiagnosis& diagnosis = report.diagnoses[i];
    const int weight = i == 0 ? kMustStand : 35;
    blocks.push_back({3, "\n"});
    blocks.push_back({weight, rewrapped(screen, oom_headline(diagnosis), 3)});
    blocks.push_back(held_block(screen, diagnosis, report));
    blocks.push_back({40, rewrapped(screen, oom_causes(diagnosis, report), 3)});
    blocks.push_back({90, rewrapped(screen, oom_eager(diagnosis, report), 4)});
    blocks.push_back({weight, match_rows(screen, diagnosis)});
  }
  if (report.diagnoses.size() > kMostFailures) {
    blocks.push_back(
        {50, screen_line(screen, "",
                         grouped(std::ssize(report.diagnoses) - 2) + " more failures: --details")});
  }
  blocks.push_back({4, "\n"});
  blocks.push_back(
      {kMustStand,
       screen_line(
           screen, "",
           (report.changes.empty() ? "None of " : grouped(std::ssize(report.changes)) + " of ") +
               grouped(report.changes_tried) + " changes tried avoid it, the fastest first (now " +
               fixed(report.prediction.time.total_s, 3) + " s a step)",
           2)});
  const std::size_t table_at = blocks.size();
  blocks.push_back({kMustStand, ""});
  blocks.push_back({75, rewrapped(screen, oom_settings(report), 2)});
  if (const std::string command = first_command(report); !command.empty()) {
    blocks.push_back({5, "\n"});
    blocks.push_back({80, command_rows(screen, command)});
  }
  std::int64_t others = 0;
  for (const Block& block : blocks) { others += num_rows(block.text); }
  constexpr std::int64_t kFewest = 3;
  if (!report.changes.empty()) {
    const std::int64_t room = std::clamp<std::int64_t>(kMostRows - others - 1, kFewest, 8);
    blocks[table_at].text = change_table(screen, report, room);
  }
  return composed(std::move(blocks));
}

}  // namespace shardplan
