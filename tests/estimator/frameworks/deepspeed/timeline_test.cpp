// DeepSpeed's allocations in the order of time, against runs whose rank is known.
#include "estimator/frameworks/deepspeed/timeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/read/case_line.h"
#include "data/read/library.h"
#include "estimator/allocator/caching_allocator.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

std::vector<Case> measured_cases(const std::string& name) {
  const Library library;
  const std::string path = std::string(SHARDPLAN_SOURCE_DIR) + "/data/measured/" + name;
  std::ifstream file(path);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    cases.push_back(read_case(line, path, library));
  }
  return cases;
}

struct Played {
  std::int64_t built = 0;  // allocated when the first step begins
  std::int64_t first_step = 0;
  std::int64_t later_steps = 0;
  std::int64_t reserved = 0;
};

Played play(const Case& run) {
  const std::int64_t rank = run.measured->ranks.front().rank;
  const auto events_of = [&](int steps) {
    return std::ssize(timeline(run.job, run.plan, rank, steps));
  };
  const std::int64_t build = events_of(0);
  const std::int64_t first = events_of(1);
  CachingAllocator allocator(run.job.profile.allocator, std::int64_t{1} << 50);
  std::unordered_map<std::int64_t, std::int32_t> blocks;
  Played played;
  std::int64_t i = 0;
  for (const AllocationEvent& event : timeline(run.job, run.plan, rank)) {
    if (event.bytes > 0) {
      blocks[event.id] = allocator.allocate(event.bytes, event.stream);
    } else {
      allocator.free(blocks.at(event.id));
    }
    ++i;
    played.built = i == build ? allocator.allocated() : played.built;
    if (i > build) {
      std::int64_t& peak = i <= first ? played.first_step : played.later_steps;
      peak = std::max(peak, allocator.allocated());
    }
  }
  played.reserved = allocator.peak_reserved();
  return played;
}

double error(std::int64_t played, const std::optional<std::int64_t>& measured) {
  return static_cast<double>(played) / static_cast<double>(measured.value()) - 1;
}

// What the rank allocates is exact but for transformers 5.17, which holds 0.3 % more. The cache is
// exact within 0.5 % where nothing waits for a stream: frees that do are played at once, which some
// of ZeRO-3's are, up to 10 %. Of one layout of ZeRO-1, run twice, five gradients have segments of
// their own.
TEST_CASE("DeepSpeed's allocations, played rank by rank, are those of 96 measured ranks") {
  std::vector<double> reserved;
  int waiting = 0;
  for (const char* file :
       {"deepspeed_h200.jsonl", "deepspeed_ranks_h200.jsonl", "deepspeed_ranks_h100.jsonl",
        "deepspeed_offload_h100.jsonl", "liger_h100.jsonl"}) {
    for (const Case& run : measured_cases(file)) {
      CAPTURE(run.id);
      const Played played = play(run);
      const MeasuredRank& rank = run.measured->ranks.front();
      CHECK(std::abs(error(played.built, rank.allocated_after_init)) < 0.001);
      CHECK(std::abs(error(played.first_step, rank.peak_allocated_first_step)) < 0.003);
      CHECK(std::abs(error(played.later_steps, rank.peak_allocated_steady)) < 0.003);
      const double cached = error(played.reserved, rank.peak_reserved);
      reserved.push_back(std::abs(cached));
      const bool has_own_segments = run.id.starts_with("ds-z1-dp64-l16-n1");
      const bool waits = run.plan.zero == 3 && std::abs(cached) >= 0.005;
      waiting += waits ? 1 : 0;
      CHECK(std::abs(cached) < (waits ? 0.1 : has_own_segments ? 0.03 : 0.005));
    }
  }
  REQUIRE(reserved.size() == 96);
  CHECK(waiting == 10);  // of 25
  std::ranges::sort(reserved);
  CHECK(reserved[43] < 0.0002);
}

// Ledgers count tensors, PyTorch blocks: rounded up to 512 bytes, with ends of less than 1 MiB that
// are not split off.
TEST_CASE("DeepSpeed's estimate of a rank is what that rank has allocated, in 96 measured ranks") {
  for (const char* file :
       {"deepspeed_h200.jsonl", "deepspeed_ranks_h200.jsonl", "deepspeed_ranks_h100.jsonl",
        "deepspeed_offload_h100.jsonl", "liger_h100.jsonl"}) {
    for (const Case& run : measured_cases(file)) {
      CAPTURE(run.id);
      const MeasuredRank& rank = run.measured->ranks.front();
      const PlanPieces pieces = plan_pieces(run.job, run.plan, rank.rank);
      const StageMemory memory =
          stage_memory(run.job, run.plan, pieces.blocks, pieces.stages.front());
      const auto is_close = [](std::int64_t counted, const std::optional<std::int64_t>& measured) {
        return std::abs(counted - measured.value()) < *measured / 1000 * 3 + kMiB;
      };
      CHECK(is_close(memory.built_bytes, rank.allocated_after_init));
      CHECK(is_close(memory.state_bytes, rank.allocated_between_steps));
      CHECK(is_close(memory.first_step_bytes, rank.peak_allocated_first_step));
      CHECK(is_close(memory.steady_bytes, rank.peak_allocated_steady));
    }
  }
}

// One plan, of which three ranks ran: the last keeps the head, the first the embedding.
TEST_CASE("estimates of DeepSpeed's ranks differ as the ranks do, and none is above the fullest") {
  int same_plan = 0;
  for (const Case& run : measured_cases("deepspeed_ranks_h200.jsonl")) {
    if (!run.id.starts_with("ds-z2-dp64-l16")) {
      continue;
    }
    ++same_plan;
    const MeasuredRank& rank = run.measured->ranks.front();
    const std::int64_t fullest = estimate_memory(run.job, run.plan).stages.front().steady_bytes;
    const std::int64_t own =
        estimate_memory_of_rank(run.job, run.plan, rank.rank).stages.front().steady_bytes;
    CHECK(own <= fullest);
    CHECK(std::abs(error(own, rank.peak_allocated_steady)) < 0.003);
  }
  CHECK(same_plan == 3);
}

}  // namespace
}  // namespace shardplan::deepspeed
