// Answers in the three formats: a table for people (GiB), CSV and JSON for programs (bytes).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "estimator/answer/step_account.h"
#include "search/walk/search.h"
#include "tools/accuracy/evidence.h"
#include "tools/commands/assumptions.h"
#include "tools/commands/compare.h"
#include "tools/commands/overlaps.h"
#include "tools/commands/prediction.h"
#include "tools/commands/stated_numbers.h"
#include "tools/commands/sweep.h"
#include "tools/options/question.h"
#include "tools/report/table.h"
#include "tools/report/terminal.h"

namespace shardplan {

enum class Format { kTable, kCsv, kJson };
inline constexpr std::array<NamedValue<Format>, 3> kFormats = {{
    {.value = Format::kTable, .name = "table"},
    {.value = Format::kCsv, .name = "csv"},
    {.value = Format::kJson, .name = "json"},
}};
constexpr const auto& names_of(Format) {
  return kFormats;
}
inline Format format_of(const Options& options) {
  return value_of<Format>(text_or(options, "format", "table")).value();  // checked when parsed
}

// The answer to --find-max: the plan and the job of the report have this value.
struct Maximum {
  std::string name;  // "micro_batch"
  std::int64_t value = 0;
  bool fits = false;               // false: not even the smallest value fits
  std::int64_t next = 0;           // the value after it, which does not fit; 0: none was tried
  std::string why_not = {};        // what that value breaks: the rule or, else, the card
  bool is_surely_largest = false;  // that is what is allocated, which grows with the size
};

enum class Detail { kTotals, kRows };

// A step where nothing is lost beside the estimated one.
struct StepComparison {
  StepAccount limit;
  StepAccount estimate;
};

// What a run is without settings that it is refused for.
struct NearestRun {
  std::vector<std::string> left_out;  // "torch_compile true"
  Job job;
  Prediction prediction;
  std::string command;  // that asks so
};

struct EstimateReport {
  Question question;
  MemoryRule rule;
  std::string network = {};  // what lies between the GPUs, in words
  Prediction prediction = {};
  std::optional<NearestRun> nearest = std::nullopt;  // of a run that is refused
  std::vector<StatedAssumption> assumptions = {};
  std::optional<Evidence> evidence = std::nullopt;  // of an answer with numbers
  std::optional<Maximum> maximum = std::nullopt;
  Detail detail = Detail::kTotals;
  std::optional<StepAccount> account = std::nullopt;   // under kRows, of an answer with numbers
  std::vector<StatedNumber> numbers = {};              // of the account
  std::optional<StepComparison> limit = std::nullopt;  // under --limit, of an answer with numbers
  std::optional<SweepReport> cost = std::nullopt;      // under --tokens or a price, likewise
};

// Switches of the framework that are off and with which a plan would be faster and still fit.
struct FasterSwitches {
  std::vector<std::string> options;  // "overlap_grad_reduce=true"
  double step_time_s = 0;            // with all of them
};

// The fastest plan of the same question on another number of GPUs or with another batch.
struct OtherSize {
  std::string option;  // of search, that asks so: "--num-gpus 64"
  std::int64_t num_gpus = 0;
  std::int64_t global_batch = 0;
  double tokens_per_s_per_gpu = 0;
  double tokens_per_s = 0;  // of all GPUs
};

// A plan as fast as the first as far as the model can tell, with less in it.
struct SimplerPlan {
  std::vector<std::string> fixes;  // of search, that find it: "vpp=1"
  RankedPlan ranked;
};

struct SearchReport {
  Job job;
  MemoryRule rule;
  SearchOptions options;     // of the rule
  std::string network = {};  // what lies between the GPUs, in words
  std::string verdict = {};  // the best that any plan has: "fits", "over", ..., "unsupported"
  SearchResult result = {};
  std::optional<Evidence> evidence = std::nullopt;        // of the first plan
  std::optional<FasterSwitches> switches = std::nullopt;  // of the first plan
  std::optional<SimplerPlan> simplest = std::nullopt;     // tied with the first plan
  // The fastest plan that the card holds, where it is faster than all that keep the rule.
  std::optional<RankedPlan> faster_over = std::nullopt;
  std::vector<OtherSize> other_sizes = {};  // where these ones have no good plan
  std::string reason;            // where no plan is valid: the last rule that any of them meets
  std::string estimate_command;  // `shardplan estimate` with the job's options; a plan's may follow
  std::optional<GivenRun> run = std::nullopt;  // --from

  // Words of --framework-option that nobody gave; they are not in estimate_command.
  std::vector<std::string> switched_on = {};
  std::vector<StatedAssumption> assumptions = {};  // of the chosen plan
  std::size_t picked = 0;                          // the chosen plan among result.top

  // The plan that the answer speaks of: the first, or that of --pick.
  const RankedPlan& chosen() const { return result.top.at(picked); }
  std::string command_of(const Plan& plan) const {
    std::string command = estimate_command;
    for (const std::string& word : useful_overlaps(switched_on, plan)) {
      command += " --framework-option " + word;
    }
    return command + " " + options_of_plan(job, plan, run);
  }
};

// One line of a batch.
struct BatchAnswer {
  std::int64_t line = 0;
  std::string id;
  std::string framework;
  Prediction prediction;
};

}  // namespace shardplan
