// Plans that the project's own trainer refuses.
#include <doctest/doctest.h>

#include <limits>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/rank_grid.h"
#include "tests/estimator/broken_plans.h"

using namespace shardplan;

TEST_CASE("native refuses by name what it does not model") {
  check_refused(
      dense_job(MemoryModel::kNative),
      {{"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 4; }, {"zero 4", "0, 1, 2, 3"}},
       {"unsupported: schedule",
        [](Job&, Plan& plan) { plan.schedule = Schedule::kInterleavedZeroBubble; },
        {"interleaved_zero_bubble", "zbv"}},
       {"unsupported: precision",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp32; },
        {"fp32"}},
       {"fp8_products_divisible_by_16",
        [](Job& job, Plan& plan) {
          plan.precision = Precision::kFp8;
          job.sequence_length = 8200;
        },
        {"8200", "multiples of 16"}},
       {"fp8_products_divisible_by_16",
        [](Job& job, Plan& plan) {
          plan.precision = Precision::kFp8;
          plan.tp = 2;
          job.model.ffn = 14352;
        },
        {"ffn / tp 7176", "multiples of 16"}},
       {"unsupported: grad_dtype",
        [](Job&, Plan& plan) { plan.grad_dtype = DType::kFp16; },
        {"fp16"}},
       {"unsupported: master_dtype",
        [](Job&, Plan& plan) { plan.master_dtype = DType::kBf16; },
        {"bf16", "fp32"}},
       {"unsupported: exp_avg_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_dtype = DType::kFp8; },
        {"fp8"}},
       {"unsupported: exp_avg_sq_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_sq_dtype = DType::kFp8; },
        {"fp8"}},
       {"rank_order_names_each_dimension_once",
        [](Job&, Plan& plan) { plan.rank_order[0] = Dimension::kTp; },
        {"tp,dp,cp,tp"}},
       {"unsupported: recompute.policy",
        [](Job&, Plan& plan) { plan.recompute.policy = "every_second_layer"; },
        {"every_second_layer"}},
       {"unsupported: model.attention_chunk_size",
        [](Job& job, Plan&) {
          job.model.layers[7] = {.attention_window = 4096, .attends_in_chunks = true};
        },
        {"4096", "no longer than a chunk"}},
       {"unsupported: offload.optimizer",
        [](Job&, Plan& plan) { plan.offload.optimizer = 0.5; },
        {"0.5"}},
       {"unsupported: offload.activations",
        [](Job&, Plan& plan) { plan.offload.activations = true; },
        {"true"}},
       {"unsupported: offload.parameters",
        [](Job&, Plan& plan) { plan.offload.parameters = true; },
        {"true"}},
       {"layers_in_every_chunk",
        [](Job&, Plan& plan) {
          plan.pp = 2;
          plan.schedule = Schedule::k1F1B;
          plan.layers_per_chunk = {0, 32};
        },
        {"32 layers in 2 chunks", "one with 0", "at least 1"}},
       {"zero_bubble_needs_zero_0_or_1",
        [](Job&, Plan& plan) {
          plan.pp = 2;
          plan.schedule = Schedule::kZbH1;
          plan.zero = 2;
        },
        {"zb_h1", "zero 2", "zero 0 or 1"}},
       {"moe_buffer_factor_within_ep",
        [](Job&, Plan& plan) { plan.moe_buffer_factor = 1.25; },
        {"1.25", "num_experts 0"}},
       {"unsupported: trained",
        [](Job& job, Plan&) { job.adapters = kDefaultAdapters; },
        {"adapters"}},
       {"unsupported: optimizer",
        [](Job& job, Plan&) { job.optimizer = OptimizerKind::kSgdMomentum; },
        {"sgd_momentum"}}});
  check_refused(
      moe_job(MemoryModel::kNative),
      {{"unsupported: precision",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp8; },
        {"fp8 with num_experts 8", "bf16, fp16"}},
       {"moe_buffer_factor_within_ep",
        [](Job&, Plan& plan) {
          plan.ep = 4;
          plan.moe_buffer_factor = 5;
        },
        {"5", "ep 4"}},
       {"routed_tokens_divisible_by_tp",
        [](Job& job, Plan& plan) {
          plan.tp = 2;
          job.sequence_length = 4095;
        },
        {"4095", "tp 2"}},
       {"moe_buffer_factor_within_ep",
        [](Job&, Plan& plan) { plan.moe_buffer_factor = std::numeric_limits<double>::quiet_NaN(); },
        {"nan"}}});
}

// validator/cuda/reach.h: ranks that share experts write into the memory of each other's GPU.
TEST_CASE("native refuses just the plans whose experts are shared across machines") {
  Job job = moe_job(MemoryModel::kNative);
  job.cluster.gpus_per_node = 4;
  job.cluster.nodes = 4;
  job.global_batch = 64;
  int refused = 0;
  int kept = 0;
  const auto check = [&](const Plan& plan) {
    const std::optional<InvalidReason> reason = why_invalid(job, plan);
    const bool is_refused = reason && reason->rule == "experts_within_one_machine";
    if (reason && !is_refused) {
      return;
    }
    bool crosses = false;
    for (std::int64_t rank = 0; rank < job.cluster.world_size(); ++rank) {
      const std::vector<std::int64_t> members = group_ranks(job, plan, GroupKind::kExperts, rank);
      crosses = crosses || members.front() / 4 != members.back() / 4;
    }
    CAPTURE(plan.tp);
    CAPTURE(plan.pp);
    CAPTURE(plan.ep);
    CAPTURE(plan.etp);
    CHECK(is_refused == crosses);
    (is_refused ? refused : kept) += 1;
  };
  using enum Dimension;
  for (const RankOrder& order : {std::array{kPp, kDp, kCp, kTp}, std::array{kDp, kPp, kCp, kTp},
                                 std::array{kDp, kCp, kTp, kPp}}) {
    for (const std::int64_t tp : {1, 2, 4}) {
      for (const std::int64_t pp : {1, 2, 4}) {
        for (const std::int64_t ep : {1, 2, 4, 8}) {
          for (const std::int64_t etp : {1, 2}) {
            Plan plan;
            plan.rank_order = order;
            plan.tp = tp;
            plan.sequence_parallel = tp > 1;
            plan.pp = pp;
            plan.schedule = pp > 1 ? Schedule::k1F1B : Schedule::kNone;
            plan.ep = ep;
            plan.etp = etp;
            check(plan);
          }
        }
      }
    }
  }
  CHECK(refused > 20);
  CHECK(kept > 20);
}
