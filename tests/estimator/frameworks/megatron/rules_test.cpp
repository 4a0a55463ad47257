// Plans that Megatron-LM's profile refuses.
#include <doctest/doctest.h>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/broken_plans.h"

using namespace shardplan;

TEST_CASE("tp divides the projection of a multi-token prediction module") {
  for (const MemoryModel model : {MemoryModel::kMegatron, MemoryModel::kNative}) {
    Job job = dense_job(model);
    job.model.num_mtp_layers = 1;
    check_refused(job, {{"hidden_divisible_by_tp_with_mtp",
                         [](Job& spoiled, Plan& plan) {
                           spoiled.model.hidden = 4100;
                           plan.tp = 8;
                         },
                         {"num_mtp_layers 1", "hidden 4100", "tp 8"}}});
  }
}

TEST_CASE("the loss of Transformer Engine and registered buffers want what they stand on") {
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"te_cross_entropy_needs_transformer_engine",
                  [](Job& spoiled, Plan&) {
                    spoiled.profile.fused_optimizer = false;
                    spoiled.profile.cross_entropy = CrossEntropyKind::kTeFusedSeparateGrad;
                  },
                  {"te_fused_separate_grad", "fused_optimizer false", "native_fused"}},
                 {"nccl_ub_needs_plain_segments",
                  [](Job& spoiled, Plan&) {
                    spoiled.profile.nccl_ub = true;
                    spoiled.profile.allocator = AllocatorKind::kCachingExpandable;
                  },
                  {"expandable segments", "allocator caching"}}});
  Job job = dense_job(MemoryModel::kMegatron);
  job.profile.fused_optimizer = false;
  job.profile.cross_entropy = CrossEntropyKind::kNativeFused;
  CHECK(!why_invalid(job, {.dp = 8}));
}

TEST_CASE("megatron refuses by name what it does not model") {
  check_refused(
      dense_job(MemoryModel::kMegatron),
      {{"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 4; }, {"zero 4", "0, 1, 2, 3"}},
       {"unsupported: schedule",
        [](Job&, Plan& plan) { plan.schedule = Schedule::kZbH1; },
        {"zb_h1", "profile v1", "none, 1f1b, interleaved_1f1b"}},
       {"unsupported: precision",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp32; },
        {"fp32", "bf16, fp16, fp8"}},
       {"unsupported: grad_dtype",
        [](Job&, Plan& plan) { plan.grad_dtype = DType::kFp16; },
        {"fp16", "fp32, bf16"}},
       {"unsupported: master_dtype",
        [](Job&, Plan& plan) { plan.master_dtype = DType::kFp8; },
        {"fp8"}},
       {"unsupported: exp_avg_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_dtype = DType::kInt32; },
        {"int32"}},
       {"unsupported: exp_avg_sq_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_sq_dtype = DType::kInt32; },
        {"int32"}},
       {"unsupported: rank_order",
        [](Job&, Plan& plan) { std::swap(plan.rank_order[0], plan.rank_order[3]); },
        {"tp,dp,cp,pp", "pp,dp,cp,tp"}},
       {"unsupported: recompute.policy",
        [](Job&, Plan& plan) {
          plan.recompute.granularity = RecomputeGranularity::kSelective;
          plan.recompute.policy = "every_second_layer";
        },
        {"every_second_layer"}},
       {"unsupported: offload.activations",
        [](Job&, Plan& plan) { plan.offload.activations = true; },
        {"offload.activations true"}},
       {"unsupported: offload.parameters",
        [](Job&, Plan& plan) { plan.offload.parameters = true; },
        {"offload.parameters true"}},
       {"unsupported: moe_buffer_factor",
        [](Job&, Plan& plan) { plan.moe_buffer_factor = 1.5; },
        {"1.5"}},
       {"unsupported: adapters.dtype",
        [](Job& job, Plan&) { job.adapters = kDefaultAdapters; },
        {"fp32", "bf16"}},
       {"unsupported: trained",
        [](Job& job, Plan&) {
          job.adapters = {.rank = 8, .targets = {true, true, true}, .dtype = DType::kBf16};
          job.profile.attention_backend = AttentionBackend::kLocal;
        },
        {"adapters", "all"}},
       {"unsupported: optimizer",
        [](Job& job, Plan&) { job.optimizer = OptimizerKind::kSgdMomentum; },
        {"sgd_momentum", "adamw"}}});
}

TEST_CASE("an offloaded optimizer has fp32 state, whatever the types are said to be") {
  const auto with = [](DType Plan::*type, DType value) {
    return [type, value](Job&, Plan& plan) {
      plan.zero = 1;
      plan.offload.optimizer = 0.5;
      plan.*type = value;
    };
  };
  check_refused(
      dense_job(MemoryModel::kMegatron),
      {{"offloaded_optimizer_is_fp32", with(&Plan::exp_avg_dtype, DType::kBf16), {"bf16", "0.5"}},
       {"offloaded_optimizer_is_fp32", with(&Plan::exp_avg_sq_dtype, DType::kFp8), {"fp8"}},
       {"offloaded_optimizer_is_fp32", with(&Plan::master_dtype, DType::kFp16), {"fp16"}}});
  const Job job = dense_job(MemoryModel::kMegatron);
  Plan plan;
  plan.zero = 1;
  plan.offload.optimizer = 0.5;
  CHECK(!why_invalid(job, plan));
  plan.offload.optimizer = 0;
  plan.exp_avg_dtype = DType::kBf16;
  CHECK(!why_invalid(job, plan));
}

// Rows of 12,288 and of an odd width that 3 does not divide meet at their product, 206,158,393,344;
// 8 times that is more than 2^40.
TEST_CASE("buckets of Megatron-FSDP that end beyond counting are refused") {
  const auto odd_width = [](Job& job, Plan& plan) {
    job.model.ffn = 16'777'213;
    job.model.hidden = 12'288;
    plan.zero = 3;
  };
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"megatron_fsdp_buckets_too_large",
                  odd_width,
                  {"hidden 12288", "ffn 16777213", "8 ranks", "zero 0, 1"}}});
  Job job = dense_job(MemoryModel::kMegatron);
  Plan plan;
  odd_width(job, plan);
  plan.zero = 1;
  CHECK(!why_invalid(job, plan));
}

TEST_CASE("graphs of the router need one") {
  const auto graphs = [](Job& job, Plan&) { job.profile.cuda_graphs = CudaGraphs::kRouter; };
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"router_graphs_need_experts", graphs, {"cuda_graphs router", "attention"}}});
  Job job = moe_job(MemoryModel::kMegatron);
  Plan plan;
  plan.tp = 1;
  graphs(job, plan);
  CHECK(!why_invalid(job, plan));
}

TEST_CASE("replicas of Megatron-FSDP's shards know no experts") {
  Job job = moe_job(MemoryModel::kMegatron);
  for (const std::int64_t zero : {2, 3}) {
    check_refused(job, {{"megatron_fsdp_experts_need_dp_replicate_1",
                         [zero](Job&, Plan& plan) {
                           plan.zero = zero;
                           plan.dp_replicate = 2;
                         },
                         {"zero " + std::to_string(zero), "dp_replicate 2"}}});
  }
  Plan plan;
  plan.dp_replicate = 2;
  plan.zero = 1;
  CHECK(!why_invalid(job, plan));
}
