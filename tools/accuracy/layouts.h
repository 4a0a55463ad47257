// Do predicted speeds choose the layouts that measurements choose? Runs of one model on one number
// of GPUs form a group; the plan predicted to be the fastest is held against the fastest measured.
// Within a group, runs of one framework, GPU, sequence length and batch answer one question.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "estimator/plan/plan.h"

namespace shardplan {

// One measured layout; speeds in tokens per second and GPU.
struct LayoutRun {
  std::string id;
  Plan plan;
  double measured = 0;
  double predicted = 0;
  std::string framework = {};
  std::string gpu = {};
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;
};

struct LayoutGroup {
  std::string set;    // the file's name without folder and suffix
  std::string model;  // its name, or its layers and width
  std::int64_t num_gpus = 0;
  std::vector<LayoutRun> runs;  // in the order of the file
};

// Regret: the share of the best measured speed that a choice loses. Equal predictions are taken in
// the order of the file.
struct Agreement {
  double rank_correlation = 0;    // Spearman's, of speeds
  double top_1_regret = 0;        // of the plan predicted to be the fastest
  double best_of_5_regret = 0;    // of the best measured among the five predicted fastest
  double smallest_tp_regret = 0;  // of the rule "smallest tp that fits, then smallest pp": the mean
                                  // over the runs that it leaves, all of which fitted
  double median_error = 0;        // of |predicted - measured| / measured step times
  std::string chosen;             // ids of the runs predicted and measured to be the fastest
  std::string best;
};
Agreement agreement_of(const LayoutGroup& group);

// The groups cut by framework, GPU, sequence length and batch; parts of one run leave no choice and
// are left out.
std::vector<LayoutGroup> questions_of(const std::vector<LayoutGroup>& groups);

inline constexpr std::int64_t kLeastLayouts = 6;  // smaller groups say little and are not summed up

struct LayoutReport {
  std::vector<LayoutGroup> groups;
  std::int64_t without_speed = 0;  // ran out of memory, or recorded for its memory
  std::int64_t refused = 0;  // the plan breaks a rule of its framework, or no profile describes it
  std::int64_t beyond_memory_model = 0;  // predicted although the profile does not model its memory
  std::vector<std::string> refusals;     // "id: reason"
};

// Lines that cannot be read are InputErrors.
LayoutReport layout_report(const std::vector<std::string>& files, const Library& library);

// Over the groups of at least kLeastLayouts: median, and 90th percentile (nearest rank).
struct RegretSummary {
  std::int64_t groups = 0;
  std::int64_t runs = 0;
  double median_rank_correlation = 0;
  double median_top_1 = 0;
  double p90_top_1 = 0;
  double median_best_of_5 = 0;
  double median_smallest_tp = 0;
  double p90_smallest_tp = 0;
};
RegretSummary regret_summary(const LayoutReport& report);

// Over questions: what the plan predicted to be the fastest loses of the fastest measured speed.
struct ChoiceSummary {
  std::int64_t questions = 0;
  std::int64_t runs = 0;
  std::int64_t within_2_percent = 0;
  double mean = 0;
  double worst = 0;
};
ChoiceSummary choice_summary(const std::vector<LayoutGroup>& questions);

}  // namespace shardplan
