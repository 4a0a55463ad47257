// What Megatron-LM core_v0.16.1 and Transformer Engine v2.9 refuse of fp8, and what of it is
// modelled.
#pragma once

#include <string>

#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// pytorch/quantization.py, check_mxfp8_support.
inline constexpr ValidityRule kMxfp8NeedsGpu = {
    .name = "mxfp8_needs_compute_capability_100",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          const std::int64_t capability = job.cluster.gpu.compute_capability;
          return plan.precision == Precision::kFp8 && job.profile.fp8_recipe == Fp8Recipe::kMxfp8 &&
                 (capability < 100 || capability >= 120);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "fp8_recipe mxfp8 needs a GPU of compute capability 100 to 119; " +
                 job.cluster.gpu.id + " has " + number_text(job.cluster.gpu.compute_capability) +
                 "; valid: fp8_recipe delayed, tensorwise";
        }};

// pytorch/quantization.py, check_fp8_block_scaling_support: 9.0 or above. From 10.0 on products are
// mxfp8's, of scales made anew for each (pytorch/csrc/extensions/gemm.cpp).
inline constexpr ValidityRule kBlockwiseOnHopper = {
    .name = "unsupported: fp8_recipe",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          const std::int64_t capability = job.cluster.gpu.compute_capability;
          return plan.precision == Precision::kFp8 &&
                 job.profile.fp8_recipe == Fp8Recipe::kBlockwise &&
                 (capability < 90 || capability >= 100);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "fp8_recipe",
              "blockwise on compute capability " + number_text(job.cluster.gpu.compute_capability),
              "90");
        }};

// core/transformer/transformer_config.py, __post_init__.
inline constexpr ValidityRule kFp8ParamGatherNeedsFp8 = {
    .name = "fp8_param_gather_needs_fp8",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.fp8_param_gather && plan.precision != Precision::kFp8;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "fp8_param_gather with precision " + std::string(name_of(plan.precision)) +
                 "; valid: precision fp8, or fp8_param_gather false";
        }};

// Megatron-FSDP has these weights in buffers of its own, of which there are no rows.
inline constexpr ValidityRule kFp8ParamGatherFsdp = {
    .name = "unsupported: fp8_param_gather",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return keeps_fp8_weights(job, plan) && plan.zero >= 2; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "fp8_param_gather", "true with zero " + number_text(plan.zero),
                              "zero 1");
        }};

// training/arguments.py, validate_args.
inline constexpr ValidityRule kFp8ParamGatherNeedsZero = {
    .name = "fp8_param_gather_needs_zero_1",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return keeps_fp8_weights(job, plan) && plan.zero == 0; },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "fp8_param_gather with zero 0: it needs the distributed optimizer; valid: zero 1");
        }};

// core/optimizer/distrib_optimizer.py, _build_model_and_main_param_groups: FusedAdam would get no
// weight of the other recipes' (None). With delayed scaling it writes fp8 weights beside main
// parameters in fp32 or fp16; a low half of them belongs to bf16 weights (Transformer Engine
// pytorch/optimizers/fused_adam.py, step).
inline constexpr ValidityRule kFp8ParamGatherMain = {
    .name = "fp8_param_gather_main_parameters",
    .reads = {PlanField::kPrecision, PlanField::kMasterDtype},
    .broken =
        [](const Job& job, const Plan& plan) {
          const bool is_delayed = job.profile.fp8_recipe == Fp8Recipe::kDelayed;
          return keeps_fp8_weights(job, plan) && plan.master_dtype != DType::kFp32 &&
                 !(is_delayed && plan.master_dtype == DType::kFp16);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const bool is_delayed = job.profile.fp8_recipe == Fp8Recipe::kDelayed;
          return "fp8_param_gather with fp8_recipe " +
                 std::string(name_of(job.profile.fp8_recipe)) + " and master_dtype " +
                 std::string(name_of(plan.master_dtype)) + "; valid: master_dtype fp32" +
                 (is_delayed ? ", fp16" : "");
        }};

// core/transformer/transformer_config.py, __post_init__.
inline constexpr ValidityRule kDelayedScalingRecomputes = {
    .name = "delayed_scaling_recomputes_neither_moe_act_nor_layernorm",
    .reads = {PlanField::kPrecision, PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const RecomputeModules& modules = plan.recompute.modules;
          return plan.precision == Precision::kFp8 &&
                 job.profile.fp8_recipe == Fp8Recipe::kDelayed &&
                 plan.recompute.granularity == RecomputeGranularity::kSelective &&
                 (modules.moe_act || modules.layernorm);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "recompute_modules moe_act and layernorm with fp8_recipe delayed; valid: fp8_recipe "
              "tensorwise, or neither of them recomputed alone");
        }};

// training/arguments.py, validate_args, but for delayed scaling, of which there are no rows.
inline constexpr ValidityRule kFp8ParamGatherOffload = {
    .name = "fp8_param_gather_needs_the_optimizer_on_the_gpu",
    .reads = {PlanField::kPrecision, PlanField::kOffload},
    .broken =
        [](const Job& job, const Plan& plan) {
          return keeps_fp8_weights(job, plan) && plan.offload.optimizer > 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "fp8_param_gather with offload.optimizer " + number_text(plan.offload.optimizer) +
                 (job.profile.fp8_recipe == Fp8Recipe::kDelayed ? ": not modelled" : "") +
                 "; valid: offload.optimizer 0, or fp8_param_gather false";
        }};

// Rows of an fp8 product in multiples of 8, widths in multiples of 16 (pytorch/utils.py,
// assert_dim_for_fp8_exec); with mxfp8 both in multiples of the 32 values that share a scale
// (pytorch/csrc/quantizer.cpp, MXFP8Quantizer::get_scale_shape).
constexpr std::int64_t fp8_row_multiple(const Job& job) {
  return job.profile.fp8_recipe == Fp8Recipe::kMxfp8 ? 32 : 8;
}
constexpr std::int64_t fp8_width_multiple(const Job& job) {
  return job.profile.fp8_recipe == Fp8Recipe::kMxfp8 ? 32 : 16;
}

inline constexpr ValidityRule kFp8Tokens = {
    .name = "fp8_tokens_divisible",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kMicroBatch, PlanField::kSequenceParallel,
              PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          const std::int64_t tp = plan.sequence_parallel ? plan.tp : 1;
          const std::int64_t rows = fp8_row_multiple(job);
          return plan.precision == Precision::kFp8 &&
                 job.sequence_length / plan.cp / tp % rows * (plan.micro_batch % rows) % rows != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::int64_t tp = plan.sequence_parallel ? plan.tp : 1;
          return "precision fp8: micro_batch " + number_text(plan.micro_batch) + " * " +
                 number_text(job.sequence_length / plan.cp / tp) +
                 " positions of a rank are not divisible by " + number_text(fp8_row_multiple(job)) +
                 "; valid: a multiple of " + number_text(fp8_row_multiple(job)) + " tokens";
        }};

inline constexpr ValidityRule kFp8Widths = {
    .name = "fp8_widths_divisible",
    .reads = {PlanField::kTp, PlanField::kEtp, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          const std::int64_t width = fp8_width_multiple(job);
          return plan.precision == Precision::kFp8 &&
                 (model.hidden % width != 0 || model.ffn / plan.tp % width != 0 ||
                  model.moe.expert_ffn / plan.etp % width != 0 || model.moe.latent % width != 0 ||
                  model.moe.shared_ffn / plan.tp % width != 0);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          return "precision fp8: hidden " + number_text(model.hidden) + ", ffn / tp " +
                 number_text(model.ffn / plan.tp) + ", expert_ffn / etp " +
                 number_text(model.moe.expert_ffn / plan.etp) + ", shared_ffn / tp " +
                 number_text(model.moe.shared_ffn / plan.tp) +
                 (model.moe.latent > 0 ? ", latent " + number_text(model.moe.latent) : "") +
                 "; valid: multiples of " + number_text(fp8_width_multiple(job));
        }};

}  // namespace shardplan::megatron
