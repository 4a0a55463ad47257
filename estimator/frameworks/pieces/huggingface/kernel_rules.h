// Which kernels of experts, norms and rotary embeddings are described, and of which models.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/hub_kernels.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::huggingface {

// What of a run those kernels of experts were not read for; empty: they were. ScatterMoE wants
// gated experts whose halves lie behind each other, without biases (experts.py
// scattermoe_supports_layout); its way for gpt-oss's, and 4-bit weights that FSDP gathers, were not
// followed. megablocks' stand in for gpt-oss's whole block, which adapters of experts go round.
inline std::string unread_experts(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const FrameworkProfile& profile = job.profile;
  const bool is_packed = profile.quantizes_experts && job.quantized.kind != Quantization::kNone;
  const bool is_gpt_oss = model.activation == Activation::kClampedSwiglu;
  if (profile.eager_experts) {
    return "eager_experts true";
  }
  if (profile.wide_ends) {
    return "wide_ends true";
  }
  if (profile.expert_kernels == ExpertKernels::kMegablocks) {
    return !is_gpt_oss                        ? "model.family " + model.family
           : is_packed                        ? "quantizes_experts true"
           : !expert_adapters(job).are_none() ? "adapters on experts"
                                              : "";
  }
  return is_gpt_oss || !model.gated_ffn || model.moe.biased_experts ? "experts like gpt-oss's"
         : model.moe.latent > 0                                     ? "experts of projected tokens"
         : is_packed && job.quantized.kind == Quantization::kInt8   ? "experts of 8 bits"
         : is_packed && plan.zero > 0 ? "quantizes_experts true and zero " + number_text(plan.zero)
                                      : "";
}
inline constexpr ValidityRule kExpertKernelsAsRead = {
    .name = "unsupported: expert_kernels",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.expert_kernels != ExpertKernels::kGrouped &&
                 job.model.moe.num_experts > 0 && !unread_experts(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "expert_kernels",
                              std::string(name_of(job.profile.expert_kernels)) + " with " +
                                  unread_experts(job, plan),
                              "grouped");
        }};

// transformers asks gptqmodel for its best kernel unless the checkpoint's quantization_config says
// otherwise (transformers 5.17 utils/quantization_config.py GPTQConfig, AwqConfig; optimum 2.3.0
// gptq/quantizer.py select_quant_linear). gptqmodel 7.3.4 takes Machete's on Hopper, Marlin's or
// ExLlama's before it, whose train() raises NotImplementedError, as 5.0 to 7.0 have it
// (utils/importer.py select_quant_linear, nn_modules/qlinear/__init__.py BaseQuantLinear.train).
// Its kernels of backend auto_trainable unpack GPTQ's weights by a function that inductor compiles
// (nn_modules/qlinear/torch.py TorchLinear.optimize), and AWQ's by an extension that is compiled
// where nvcc is, or by others.
inline constexpr ValidityRule kQuantizationAsRead = {
    .name = "unsupported: quantization",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.quantized.kind == Quantization::kGptq ||
                 job.quantized.kind == Quantization::kAwq;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "quantization",
                              std::string(name_of(job.quantized.kind)) +
                                  " (gptqmodel's own choice of a kernel does not train, and those "
                                  "of backend auto_trainable are compiled)",
                              "none, nf4, fp4, int8");
        }};

// apply_rotary checks that queries and cosines have one type (rotary/torch-ext/torch_binding.cpp);
// under autocast queries are in that of products, cosines in that of the residual stream.
inline constexpr ValidityRule kTurnedInOneType = {
    .name = "rotary_kernel_takes_one_type",
    .reads = {PlanField::kZero, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.liger_kernel == LigerKernel::kNorms &&
                 hub_kernels_of(job.model).rotary && uses_autocast(job, plan) &&
                 has_wide_stream(job, plan);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "liger_kernel norms beside a residual stream in fp32: the Hub's rotary kernel takes "
              "queries and cosines of one type, and the run stops; valid: weights_dtype bf16, or "
              "liger_kernel off");
        }};

// kernelize asks the model for its device, which is that of its first parameter, and has no kernels
// for training on the host (transformers 5.14.1 integrations/hub_kernels.py).
inline constexpr ValidityRule kHubKernelsOnGpu = {
    .name = "hub_kernels_want_parameters_on_the_gpu",
    .reads = {PlanField::kOffload},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.offload.parameters &&
                 (job.profile.liger_kernel == LigerKernel::kNorms ||
                  job.profile.expert_kernels == ExpertKernels::kMegablocks);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return std::string("offload.parameters with ") +
                 (job.profile.liger_kernel == LigerKernel::kNorms ? "liger_kernel norms"
                                                                  : "expert_kernels megablocks") +
                 ": transformers takes no kernels of the Hub for parameters on the host; valid: "
                 "liger_kernel off and expert_kernels grouped, or no offload";
        }};

}  // namespace shardplan::huggingface
