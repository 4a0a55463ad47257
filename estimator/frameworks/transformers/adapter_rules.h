// Where adapters may stand under transformers' Trainer alone.
#pragma once

#include <string>

#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::transformers {

// axolotl's functions as they run on plain tensors (067b021 kernels/lora.py).
inline constexpr ValidityRule kKernelsOnPlainAdapters = {
    .name = "unsupported: adapter_kernels",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.adapter_kernels && job.adapters.rank > 0 &&
                 (plan.zero > 0 || job.adapters.decomposes_weights ||
                  job.quantized.kind == Quantization::kInt8);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "adapter_kernels",
                              plan.zero > 0 ? "true with zero " + number_text(plan.zero)
                              : job.adapters.decomposes_weights ? "true with DoRA"
                                                                : "true with int8 weights",
                              "false, or plain adapters with zero 0");
        }};

// torchao's layers were read in bf16, behind a loss that takes the head's weight, not its module
// (quantization/qat/linear.py; liger_kernel transformers/model/llama.py lce_forward).
inline std::string unread_fake_quantization(const Job& job, const Plan& plan) {
  const HeadLoss loss = job.profile.head_loss;
  const bool takes_weight =
      loss == HeadLoss::kCutCrossEntropy ||
      (loss == HeadLoss::kFusedLinear &&
       huggingface::class_of(job.model).liger != huggingface::LigerUse::kNone);
  const bool is_wide =
      plan.zero == 0 && (job.profile.weights_dtype != DType::kBf16 || job.profile.wide_ends);
  return job.adapters.rank > 0                            ? "adapters"
         : job.model.has_moe_layers()                     ? "experts"
         : huggingface::has_recurrences(job.model)        ? "recurrent layers"
         : !takes_weight                                  ? "a loss of all logits"
         : is_wide                                        ? "weights in fp32"
         : plan.zero > 0 && job.profile.fsdp_version == 1 ? "fsdp_version 1"
                                                          : "";
}
inline constexpr ValidityRule kFakeQuantizationAsRead = {
    .name = "unsupported: fake_quantization",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.fake_quantization != FakeQuantization::kNone &&
                 !unread_fake_quantization(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "fake_quantization",
                              std::string(name_of(job.profile.fake_quantization)) + " with " +
                                  unread_fake_quantization(job, plan),
                              "none, or whole dense models in bf16 with head_loss fused_linear or "
                              "cut_cross_entropy");
        }};

}  // namespace shardplan::transformers
