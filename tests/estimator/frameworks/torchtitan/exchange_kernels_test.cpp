// Kernels beside the products of torchtitan's layers where a sequence is divided, against those of
// one step on H200 (data/measured/ring_kernels_h200.json, microseconds of a layer).
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/block_context_parallel.h"
#include "tests/time_constants.h"

namespace shardplan::torchtitan {
namespace {

Job titan_job(std::int64_t sequence_length, std::int64_t kv_heads, bool compiled) {
  Job job;
  job.cluster.gpu.constants = library_constants();
  set_framework(job.profile, MemoryModel::kTorchtitan);
  job.profile.compile = compiled;
  job.sequence_length = sequence_length;
  job.model.num_heads = 24;
  job.model.num_kv_heads = kv_heads;
  job.model.head_dim = 128;
  job.cluster.gpu.times.emplace().copy_bytes_per_s = 4.25e12;
  return job;
}

BlockTime ring_merges(const Job& job, const Plan& plan) {
  const AttentionWork work = {.heads = job.model.num_heads, .qk_dim = 128, .v_dim = 128};
  return context_parallel_merges(block_context(job, plan), {}, work);
}

double us(double seconds) {
  return seconds * 1e6;
}

// The mean of the ranks: keys and values joined, values copied, queries cut in halves, blocks
// merged; gradients of queries cast, cut and added, of keys and values cast, added and joined. The
// rotation's own kernels, as large without a ring, are taken off.
TEST_CASE("a compiled ring merges its blocks in what was measured") {
  const Job two = titan_job(16384, 8, true);
  const BlockTime of_two = ring_merges(two, {.cp = 2, .micro_batch = 2});
  CHECK(us(of_two.forward_s) == doctest::Approx((180 + 157) / 2.).epsilon(0.1));
  CHECK(us(of_two.backward_input_s) == doctest::Approx((446 + 393) / 2.).epsilon(0.1));
  const Job four = titan_job(32768, 8, true);
  const BlockTime of_four = ring_merges(four, {.cp = 4});
  CHECK(us(of_four.forward_s) == doctest::Approx((212 + 250 + 254 + 167) / 4.).epsilon(0.1));
  CHECK(us(of_four.backward_input_s) == doctest::Approx((435 + 420 + 455 + 420) / 4.).epsilon(0.1));
}

TEST_CASE("compiled, a ring's merges move less, and more with every hop and with every head") {
  for (const std::int64_t cp : {2, 4}) {
    const Plan plan = {.cp = cp};
    const BlockTime eager = ring_merges(titan_job(32768, 8, false), plan);
    const BlockTime compiled = ring_merges(titan_job(32768, 8, true), plan);
    CHECK(compiled.forward_s < eager.forward_s / 2);
    CHECK(compiled.backward_input_s < eager.backward_input_s / 2);
    // The tokens of a rank halve, the hops more than double.
    const BlockTime further = ring_merges(titan_job(65536, 8, true), {.cp = 2 * cp});
    CHECK(further.forward_s > compiled.forward_s);
    CHECK(further.backward_input_s > compiled.backward_input_s);
    const BlockTime all_heads = ring_merges(titan_job(32768, 24, true), plan);
    CHECK(all_heads.backward_input_s > 1.5 * compiled.backward_input_s);
  }
}

// 3072 wide: 32768 tokens of two sequences; eager kernels put together what was gathered in 354
// microseconds and cut what is scattered in 105; 4096 wide, 16384 tokens of four, compiled, 69 and
// 62. What one sequence gathers lies as it should.
TEST_CASE("what tp gathers and scatters along the sequence is copied as was measured") {
  const auto copies_us = [](const Job& job, std::int64_t micro_batch, std::int64_t hidden) {
    const Plan plan = {.tp = 2, .micro_batch = micro_batch, .sequence_parallel = true};
    const BlockTime none;
    const BlockTime region = tensor_parallel_region(
        block_context(job, plan), {.in = hidden, .out = hidden, .column = none, .row = none});
    CHECK(region.backward_input_s == doctest::Approx(region.forward_s));
    return us(region.forward_s);
  };
  CHECK(copies_us(titan_job(16384, 8, false), 2, 3072) == doctest::Approx(354 + 105).epsilon(0.2));
  CHECK(copies_us(titan_job(32768, 8, false), 1, 3072) == doctest::Approx(105).epsilon(0.1));
  CHECK(copies_us(titan_job(4096, 8, true), 4, 4096) == doctest::Approx(69 + 62).epsilon(0.1));
}

}  // namespace
}  // namespace shardplan::torchtitan
