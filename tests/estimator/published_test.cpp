// Predicted against published peaks: data/published/simumax_b200.jsonl, 43 runs of Megatron-LM with
// Transformer Engine, measured on every rank. Nothing in the profile is fitted to them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "data/case_line.h"
#include "estimator/estimate.h"

namespace shardplan {
namespace {

struct StageError {
  std::string id;
  std::int64_t pp_rank = 0;
  double share = 0;  // predicted / measured - 1
};

std::vector<Case> published_cases() {
  const Library library;
  const std::string path = std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/simumax_b200.jsonl";
  std::ifstream file(path);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    cases.push_back(read_case(line, path, library));
  }
  return cases;
}

std::int64_t measured_peak(const Case& published, std::int64_t pp_rank) {
  std::int64_t peak = 0;
  for (const MeasuredRank& rank : published.measured->ranks) {
    peak = rank.pp_rank == pp_rank ? std::max(peak, *rank.peak_allocated) : peak;
  }
  return peak;
}

std::vector<StageError> stage_errors() {
  std::vector<StageError> errors;
  for (const Case& published : published_cases()) {
    const MemoryEstimate estimate = estimate_memory(published.job, published.plan);
    for (const StageMemory& stage : estimate.stages) {
      const double measured = static_cast<double>(measured_peak(published, stage.pp_rank));
      errors.push_back({.id = published.id,
                        .pp_rank = stage.pp_rank,
                        .share = static_cast<double>(stage.allocated_bytes) / measured - 1});
    }
  }
  return errors;
}

TEST_CASE("published peaks of Megatron with Transformer Engine are met on every stage") {
  const std::vector<StageError> errors = stage_errors();
  REQUIRE(published_cases().size() == 43);
  double sum = 0;
  StageError worst;
  for (const StageError& error : errors) {
    sum += std::abs(error.share);
    worst = std::abs(error.share) > std::abs(worst.share) ? error : worst;
  }
  const double mean = sum / static_cast<double>(errors.size());
  std::printf("published peaks: %zu stages, mean |error| %.3f %%, worst %+.3f %% (%s, stage %d)\n",
              errors.size(), 100 * mean, 100 * worst.share, worst.id.c_str(),
              static_cast<int>(worst.pp_rank));
  CHECK(mean <= 0.005);
  CHECK(std::abs(worst.share) <= 0.014);
}

TEST_CASE("the stage with the largest published peak is the one predicted") {
  for (const Case& published : published_cases()) {
    const MemoryEstimate estimate = estimate_memory(published.job, published.plan);
    if (published.plan.pp == 2) {
      INFO(published.id);
      const bool measured_first = measured_peak(published, 0) > measured_peak(published, 1);
      const bool predicted_first =
          estimate.stages[0].allocated_bytes > estimate.stages[1].allocated_bytes;
      CHECK(measured_first == predicted_first);
    }
  }
}

}  // namespace
}  // namespace shardplan
