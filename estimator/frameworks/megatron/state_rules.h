// What Megatron-LM core_v0.16.1 refuses of ways to keep the optimizer's state.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

inline constexpr ValidityRule kOverlapParamGather = {
    .name = "overlap_param_gather_needs_zero_and_overlap_grad_reduce",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.overlap_param_gather &&
                 (plan.zero == 0 || !job.profile.overlap_grad_reduce);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "overlap_param_gather with zero " + number_text(plan.zero) +
                 " and overlap_grad_reduce " +
                 (job.profile.overlap_grad_reduce ? "true" : "false") +
                 "; valid: zero 1 and overlap_grad_reduce true";
        }};

// core/optimizer/__init__.py takes PyTorch's AdamW where neither Transformer Engine nor APEX is
// installed; core/models/common/language_module/language_module.py, compute_language_model_loss:
// a RuntimeError without Transformer Engine.
inline constexpr ValidityRule kEngineLossNeedsEngine = {
    .name = "te_cross_entropy_needs_transformer_engine",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const CrossEntropyKind loss = job.profile.cross_entropy;
          return !job.profile.fused_optimizer && (loss == CrossEntropyKind::kTeFused ||
                                                  loss == CrossEntropyKind::kTeFusedSeparateGrad);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "cross_entropy " + std::string(name_of(job.profile.cross_entropy)) +
                 " with fused_optimizer false, which is PyTorch's AdamW without Transformer "
                 "Engine; valid: cross_entropy native_fused or unfused, or fused_optimizer true";
        }};

// core/distributed/distributed_data_parallel_config.py, __post_init__.
inline constexpr ValidityRule kRegisteredSegments = {
    .name = "nccl_ub_needs_plain_segments",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.nccl_ub && job.profile.allocator == AllocatorKind::kCachingExpandable;
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "nccl_ub with expandable segments (PYTORCH_CUDA_ALLOC_CONF), with which Megatron-LM "
              "does not start; valid: allocator caching, or nccl_ub false");
        }};

// --use-precision-aware-optimizer and optimizer offload need the distributed optimizer.
inline constexpr ValidityRule kSmallOptimizerNeedsZero = {
    .name = "low_precision_or_offloaded_optimizer_needs_zero_1",
    .reads = {PlanField::kZero, PlanField::kMasterDtype, PlanField::kExpAvgDtype,
              PlanField::kExpAvgSqDtype, PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.zero == 0 &&
                 (plan.master_dtype != DType::kFp32 || plan.exp_avg_dtype != DType::kFp32 ||
                  plan.exp_avg_sq_dtype != DType::kFp32 || plan.offload.optimizer > 0);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "master_dtype " + std::string(name_of(plan.master_dtype)) + ", exp_avg_dtype " +
                 std::string(name_of(plan.exp_avg_dtype)) + ", exp_avg_sq_dtype " +
                 std::string(name_of(plan.exp_avg_sq_dtype)) + ", offload.optimizer " +
                 number_text(plan.offload.optimizer) +
                 " need the precision-aware distributed optimizer; found zero 0, valid: zero 1";
        }};

// core/optimizer/__init__.py: HybridDeviceOptimizer is not told of the types, and
// core/optimizer/cpu_offloading/hybrid_optimizer.py steps in fp32 on host and GPU. Megatron-LM
// takes the arguments and does without them, so that no plan has what they promise.
inline constexpr ValidityRule kOffloadedIsFp32 = {
    .name = "offloaded_optimizer_is_fp32",
    .reads = {PlanField::kMasterDtype, PlanField::kExpAvgDtype, PlanField::kExpAvgSqDtype,
              PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.offload.optimizer > 0 &&
                 (plan.master_dtype != DType::kFp32 || plan.exp_avg_dtype != DType::kFp32 ||
                  plan.exp_avg_sq_dtype != DType::kFp32);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "offload.optimizer " + number_text(plan.offload.optimizer) +
                 " with master_dtype " + std::string(name_of(plan.master_dtype)) +
                 ", exp_avg_dtype " + std::string(name_of(plan.exp_avg_dtype)) +
                 ", exp_avg_sq_dtype " + std::string(name_of(plan.exp_avg_sq_dtype)) +
                 "; valid: fp32, or offload.optimizer 0";
        }};

// core/distributed/fsdp/mcore_fsdp_adapter.py, _init_dist_index: with several distributed optimizer
// instances there is no mesh of experts.
inline constexpr ValidityRule kFsdpReplicasWithoutExperts = {
    .name = "megatron_fsdp_experts_need_dp_replicate_1",
    .reads = {PlanField::kZero, PlanField::kDpReplicate},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.zero >= 2 && plan.dp_replicate > 1;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_experts " + number_text(job.model.moe.num_experts) + " with zero " +
                 number_text(plan.zero) + " and dp_replicate " + number_text(plan.dp_replicate) +
                 "; valid: dp_replicate 1, or zero 0, 1";
        }};

inline constexpr ValidityRule kAdamWOrMuon =
    kOnlyValues<"unsupported: optimizer", &Job::optimizer, OptimizerKind::kAdamW,
                OptimizerKind::kMuon, OptimizerKind::kDistMuon>;

// training/arguments.py, validate_args, and core/optimizer/muon.py: without the distributed
// optimizer, Megatron-FSDP, overlaps and fp16. Learned positions are a matrix that it updates,
// which is not described.
inline constexpr ValidityRule kMuonAlone = {
    .name = "muon_needs_zero_0_and_no_overlaps",
    .reads = {PlanField::kZero, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return uses_muon(job) &&
                 (plan.zero > 0 || plan.precision == Precision::kFp16 ||
                  job.profile.overlap_grad_reduce || job.profile.overlap_param_gather ||
                  job.model.learned_positions > 0);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const auto word = [](bool value) { return std::string(value ? "true" : "false"); };
          return "optimizer " + std::string(name_of(job.optimizer)) + " with zero " +
                 number_text(plan.zero) + ", precision " + std::string(name_of(plan.precision)) +
                 ", overlap_grad_reduce " + word(job.profile.overlap_grad_reduce) +
                 ", overlap_param_gather " + word(job.profile.overlap_param_gather) +
                 ", learned_positions " + number_text(job.model.learned_positions) +
                 "; valid: zero 0, bf16 or fp8, no overlap, no learned positions";
        }};

// Whether buckets of Megatron-FSDP may end beyond what is counted.
inline bool has_uncountable_buckets(const Job& job, const Plan& plan) {
  const auto is_uncountable = [&](BlockKind kind) {
    const RowMultiples rows = row_multiples(job, plan, kind);
    return std::max(rows.dense, rows.expert) > kMostBucketElements / job.cluster.world_size();
  };
  return is_megatron_fsdp(job, plan) &&
         ((job.model.has_dense_layers() && is_uncountable(BlockKind::kDenseLayer)) ||
          (job.model.has_moe_layers() && is_uncountable(BlockKind::kMoeLayer)) ||
          (job.model.num_mtp_layers > 0 && is_uncountable(BlockKind::kMtp)));
}
inline constexpr ValidityRule kFsdpBuckets = {
    .name = "megatron_fsdp_buckets_too_large",
    .reads = {PlanField::kTp, PlanField::kEtp, PlanField::kZero},
    .broken = has_uncountable_buckets,
    .explain = [](const Job& job, const Plan& plan) {
      return "zero " + number_text(plan.zero) + " pads buckets of hidden " +
             number_text(job.model.hidden) + " and ffn " + number_text(job.model.ffn) +
             " to multiples of all widths and of up to " + number_text(job.cluster.world_size()) +
             " ranks, more than " + number_text(kMostBucketElements) +
             " elements; valid: widths with larger common divisors, or zero 0, 1";
    }};

}  // namespace shardplan::megatron
