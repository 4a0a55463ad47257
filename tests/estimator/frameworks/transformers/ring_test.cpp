// Sequences divided by accelerate's ring attention under FSDP2.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/eager/ring_attention.h"
#include "estimator/plan/number.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

Plan ring_plan(std::int64_t cp, CpMethod method) {
  Plan plan = trainer_plan(3);
  plan.cp = cp;
  plan.cp_method = method;
  return plan;
}

// One sequence of 512 tokens a rank.
Job ring_job(std::int64_t cp) {
  Job job = small_trainer_job(cp);
  job.sequence_length = 512 * cp;
  job.global_batch = 1;
  return job;
}

constexpr std::int64_t kKey = 512 * 4 * 64;    // elements of a rank's keys
constexpr std::int64_t kQuery = 512 * 8 * 64;  // and of its queries

TEST_CASE("a ring divides tokens over ranks, which share FSDP2's shards") {
  for (const std::int64_t cp : {2, 4}) {
    CAPTURE(cp);
    const Job job = ring_job(cp);
    const Plan plan = ring_plan(cp, CpMethod::kAllGather);
    CHECK(why_invalid(job, plan) == std::nullopt);
    CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / cp);
    CHECK(most_bytes(job, plan, MomentKind::kLossForward, "layer.ffn") == 2 * 4 * 1024 * 512 * 2);
    // Ids, labels, shifted labels, mask and positions of all ranks' tokens stay.
    CHECK(most_bytes(job, plan, MomentKind::kLossForward, "tokens") == 5 * 8 * 512 * cp);
  }
}

// A round of half the queries puts halves together by heads, which the output's product copies.
TEST_CASE("a layer in a ring keeps attention's output twice") {
  const auto kept = [](const Job& job, const Plan& plan) {
    return most_bytes(job, plan, MomentKind::kLossForward, "layer.attention");
  };
  const Job alone = ring_job(1);
  for (const CpMethod method : {CpMethod::kAllGather, CpMethod::kRing}) {
    CHECK(kept(ring_job(2), ring_plan(2, method)) == kept(alone, trainer_plan(0)) + 2 * 2 * kQuery);
  }
}

// Keys and values in bf16 of all ranks beside what this rank sent, from the first round on.
TEST_CASE("keys and values are gathered once, or come from the rank before") {
  for (const std::int64_t cp : {2, 4}) {
    CAPTURE(cp);
    const auto exchanged = [&](CpMethod method, MomentKind moment) {
      return most_bytes(ring_job(cp), ring_plan(cp, method), moment, "context_parallel.exchange");
    };
    const std::int64_t pair = 2 * 2 * kKey;
    CHECK(exchanged(CpMethod::kAllGather, MomentKind::kForward) == (cp + 1) * pair);
    CHECK(exchanged(CpMethod::kRing, MomentKind::kForward) == (cp > 2 ? 3 : 2) * pair);
    CHECK(exchanged(CpMethod::kAllGather, MomentKind::kLossBackward) >= (cp + 1) * pair + 2 * pair);
  }
}

// The most bytes that a forward pass of ring attention holds beside its input, in queries of bf16:
// PyTorch 2.11's own functions on the last rank but one, played with tensors without memory in a
// process group that moves nothing, of 512 tokens with 8 and 4 heads of 64.
TEST_CASE("ring attention holds what PyTorch's rounds hold") {
  const auto most_of_queries = [](std::int64_t ranks, bool gathers) {
    eager::Graph graph(0, 132);
    std::int64_t held = 0;
    {
      const eager::NoGrad no_grad(graph);
      const auto of = [](std::int64_t elements) {
        eager::Tensor tensor;
        tensor.elements = elements;
        return tensor;
      };
      eager::ring_attention(
          graph, of(kQuery), of(kKey), of(kKey),
          {.tokens = 512, .query_heads = 8, .key_heads = 4, .ranks = ranks, .gathers = gathers});
    }
    std::int64_t most = 0;
    std::map<std::int64_t, std::int64_t> bytes;
    for (const AllocationEvent& event : graph.tape.take_events()) {
      held += event.bytes > 0 ? event.bytes : -bytes[event.id];
      bytes[event.id] = event.bytes;
      most = std::max(most, held);
    }
    return number(most) / number(2 * kQuery);
  };
  CHECK(most_of_queries(2, true) == 8.5625);
  CHECK(most_of_queries(4, true) == 13.09375);
  CHECK(most_of_queries(2, false) == 7.5625);
  CHECK(most_of_queries(4, false) == 11.09375);
}

TEST_CASE("a gathering ring and one of hops differ in their exchange, not in attention's work") {
  Job job = ring_job(4);
  job.sequence_length = 16384;
  const StepTime gathers = estimate_step_time(job, ring_plan(4, CpMethod::kAllGather));
  const StepTime hops = estimate_step_time(job, ring_plan(4, CpMethod::kRing));
  CHECK(gathers.compute_s == doctest::Approx(hops.compute_s));
  CHECK(gathers.exposed_cp_s > 0);
  CHECK(hops.exposed_cp_s > 0);
}

}  // namespace
}  // namespace shardplan::transformers
