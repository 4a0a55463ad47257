// Predicted against published peaks: data/published/simumax_b200.jsonl, 43 runs of Megatron-LM with
// Transformer Engine, measured on every rank. Nothing in the profile is fitted to them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "data/read/case_line.h"
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

std::int64_t measured_reserved(const Case& published, std::int64_t pp_rank) {
  std::int64_t reserved = 0;
  for (const MeasuredRank& rank : published.measured->ranks) {
    reserved = rank.pp_rank == pp_rank ? std::max(reserved, *rank.peak_reserved) : reserved;
  }
  return reserved;
}

// The replay sees one stream and no other library; the ranks of a stage differ by up to 5 %.
TEST_CASE("reserved memory follows from the replay, half of the stages within 2 %") {
  std::vector<double> errors;
  for (const Case& published : published_cases()) {
    for (const StageMemory& stage : estimate_memory(published.job, published.plan).stages) {
      errors.push_back(static_cast<double>(stage.reserved_bytes) /
                           static_cast<double>(measured_reserved(published, stage.pp_rank)) -
                       1);
    }
  }
  std::ranges::sort(errors);
  const auto by_size = [](double a, double b) { return std::abs(a) < std::abs(b); };
  const double lowest = errors.front();
  const double highest = errors.back();
  std::ranges::sort(errors, by_size);
  const double median = std::abs(errors[errors.size() / 2]);
  std::printf("published reserved: %zu stages, median |error| %.2f %%, %+.2f to %+.2f %%\n",
              errors.size(), 100 * median, 100 * lowest, 100 * highest);
  CHECK(median <= 0.02);
  CHECK(lowest >= -0.03);
  CHECK(highest <= 0.06);
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
