#include "estimator/frameworks/megatron/allocator_tails.h"
#include "estimator/answer/stage_state.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "estimator/allocator/block_counts.h"
#include "estimator/allocator/caching_allocator.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/units.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

// Sizes of all pools, and many that are equal.
std::int64_t any_bytes(std::mt19937& random) {
  const std::vector<std::int64_t> most = {4096, kMiB, 2 * kMiB, 12 * kMiB, 30 * kMiB, 600 * kMiB};
  const std::int64_t limit = most[random() % most.size()];
  const auto below = [&](std::uint64_t end) { return static_cast<std::int64_t>(random() % end); };
  return limit * (1 + below(9)) / 9 + 8 * below(2);
}

TEST_CASE("blocks counted by size are those of the allocator while nothing is freed") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    CachingAllocator allocator(AllocatorKind::kCaching, kUnlimited);
    BlockCounts counts;
    BlockCounts::Sizes segments;
    std::int64_t asked = 0;
    std::int64_t beyond = 0;
    for (int step = 0; step < 40; ++step) {
      const std::int64_t bytes = any_bytes(random);
      const std::int64_t count = 1 + static_cast<std::int64_t>(random() % 30);
      for (std::int64_t i = 0; i < count; ++i) { allocator.allocate(bytes); }
      asked += count * round_up(bytes, kAllocatorRounding);
      beyond += counts.take(bytes, count, &segments);
      REQUIRE(beyond == allocator.allocated() - asked);
    }
    std::int64_t reserved = 0;
    for (const auto& [bytes, count] : segments) { reserved += bytes * count; }
    CHECK(reserved == allocator.peak_reserved());
  }
}

TEST_CASE("a tensor freed behind a kept one leaves the blocks that the allocator has") {
  std::mt19937 random(2);
  int known = 0;
  for (int round = 0; round < 2000; ++round) {
    CachingAllocator allocator(AllocatorKind::kCaching, kUnlimited);
    BlockCounts counts;
    std::int64_t asked = 0;
    std::int64_t beyond = 0;
    for (int step = 0; step < 8; ++step) {
      const std::int64_t freed = any_bytes(random);
      const std::int64_t kept = random() % 2 == 0 ? 2 * freed : any_bytes(random);
      const std::int64_t count = 1 + static_cast<std::int64_t>(random() % 5);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t block = allocator.allocate(freed);
        allocator.allocate(kept);
        allocator.free(block);
      }
      asked += count * round_up(kept, kAllocatorRounding);
      const std::int64_t more = counts.take_beside(freed, kept, count);
      if (more < 0) {
        break;  // addresses decide
      }
      ++known;
      beyond += more;
      REQUIRE(beyond == allocator.allocated() - asked);
    }
  }
  CHECK(known > 8000);
}

void check_stages(const Job& job, const Plan& plan) {
  const LayerPartition partition = partition_layers(job, plan);
  for (const std::int64_t rank : {std::int64_t{0}, plan.pp / 2, plan.pp - 1}) {
    const StageLayout stage = stage_layout(job, plan, partition, rank);
    const StageTensors tensors = stage_tensors(job, plan, stage);
    REQUIRE(allocator_tails(job, plan, stage, tensors) ==
            replayed_tails(job, plan, stage, tensors));
  }
}

TEST_CASE("ends of blocks counted by size are those of the replay") {
  const Library library;
  RandomJobs jobs(library, 11);
  for (const char* profile : {"megatron", "megatron-core-local"}) {
    CAPTURE(profile);
    for (int i = 0; i < 150; ++i) {
      const RandomCase drawn = jobs.next(library.framework(profile));
      check_stages(drawn.job, drawn.plan);
    }
    for (const char* model :
         {"llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"}) {
      CAPTURE(model);
      Job job;
      job.model = library.model(model).model;
      job.cluster = library.cluster("8x8-h100");
      job.profile = library.framework(profile);
      job.sequence_length = 4096;
      job.global_batch = 512;
      Plan plan;
      for (int i = 0; i < 60; ++i) {
        plan = jobs.next_plan(job, plan);
        check_stages(job, plan);
      }
    }
  }
}

}  // namespace
}  // namespace shardplan::megatron
