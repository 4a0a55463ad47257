// Sequences divided by accelerate's ring attention under FSDP2.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/eager/gathered_attention.h"
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

// The most bytes that ring_flash_attn's own function holds beside its input, and beside what it
// saved and its gradient, in queries of bf16: played with tensors without memory on the last rank
// of a process group that moves nothing, and a kernel that makes what flash-attn's makes.
TEST_CASE("axolotl's ring holds what ring_flash_attn's function holds") {
  for (const auto& [ranks, forward, backward] :
       {std::tuple{2, 3.5625, 5.7578125}, {4, 4.5625, 8.2578125}}) {
    eager::Graph graph(0, 132);
    const auto input = [&](std::int64_t elements) {
      eager::Tensor tensor;
      tensor.elements = elements;
      return graph.make_leaf(tensor, [](const eager::Tensor&) {});
    };
    std::int64_t held = 0;
    std::map<std::int64_t, std::int64_t> bytes;
    const auto most_since = [&](std::int64_t before) {
      std::int64_t most = held;
      for (const AllocationEvent& event : graph.tape.take_events()) {
        held += event.bytes > 0 ? event.bytes : -bytes[event.id];
        bytes[event.id] = event.bytes;
        most = std::max(most, held);
      }
      return number(most - before) / number(2 * kQuery);
    };
    {
      const eager::Tensor output = eager::gathered_attention(
          graph, input(kQuery), input(kKey), input(kKey),
          {.tokens = 512, .query_heads = 8, .key_heads = 4, .ranks = ranks});
      CHECK(most_since(0) == forward);
      eager::Tensor gradient;
      gradient.elements = kQuery;
      const std::int64_t kept = held;
      graph.backward(output, gradient);
      CHECK(most_since(kept) == backward);
    }
  }
}

// One run of tokens a rank, of which it copies its part; ids, labels, mask and positions of all
// stay, and labels are shifted with a token of padding. Of one head of keys a rank holds keys and
// values of all ranks twice, those of the first head, the next and one to replace it.
TEST_CASE("axolotl's ring divides tokens behind FlashAttention under FSDP2") {
  Job job = ring_job(4);
  job.profile.attention_backend = AttentionBackend::kFlash;
  const Plan plan = ring_plan(4, CpMethod::kAllGather);
  CHECK(why_invalid(job, plan) == std::nullopt);
  CHECK(idle_bytes(job, plan, "parameters.shards") == kSmallModel);
  CHECK(most_bytes(job, plan, MomentKind::kLossForward, "tokens") == (4 * 4 + 4 + 2) * 8 * 512);
  CHECK(most_bytes(job, plan, MomentKind::kForward, "context_parallel.exchange") ==
        2 * (2 * 2 * 4 + 2 + 3) * kKey / 4);
  Job two = job;
  two.global_batch = 2;
  Plan rows = plan;
  rows.micro_batch = 2;
  CHECK(why_invalid(two, rows)->rule == "unsupported: cp_method");
  CHECK(why_invalid(job, ring_plan(4, CpMethod::kRing))->rule == "unsupported: cp_method");
  job.model.caps_scores = true;
  CHECK(why_invalid(job, plan)->rule == "unsupported: cp_method");
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
