// What the models of pieces/huggingface know, and what their libraries accept, whoever trains them.
// Sources: transformers 5.17 trainer.py, integrations/sdpa_attention.py; peft 0.21.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/hub_kernels.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"

namespace shardplan::huggingface {

// FlashAttention takes no wider heads (sdp_utils.cpp check_head_dim_size_flash; flash-attn 2.8
// csrc/flash_attn/flash_api.cpp mha_fwd).
inline std::int64_t widest_flash_head(const Job& job) {
  std::int64_t widest = 0;
  for (const LayerSpec& layer : job.model.layers) {
    const bool is_flash =
        job.profile.attention_backend == AttentionBackend::kFlash || layer.attention_window > 0;
    widest = std::max(widest, is_flash ? job.model.heads_of(layer).qk_head_dim : 0);
  }
  return widest;
}
inline constexpr ValidityRule kHeadDim = {
    .name = "unsupported: model.head_dim",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          using enum AttentionBackend;
          const AttentionBackend backend = job.profile.attention_backend;
          return (backend == kFlash || backend == kFlashInWindows) &&
                 widest_flash_head(job) > kWidestHead;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.head_dim",
              number_text(widest_flash_head(job)) + " with attention_backend " +
                  std::string(name_of(job.profile.attention_backend)),
              "at most " + number_text(kWidestHead) + ", or attention_backend auto");
        }};

inline constexpr ValidityRule kFamilies = {
    .name = "unsupported: model.family",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return !is_known_family(job.model); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.family", job.model.family, "others");
        }};

// The classes have the norms that their models have.
inline constexpr ValidityRule kNormsOfFamily = {
    .name = "unsupported: model.layer_norm",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.model.layer_norm != is_layer_norm(class_of(job.model).norm);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.layer_norm", job.model.layer_norm ? "true" : "false",
                              job.model.layer_norm ? "false" : "true");
        }};

// Liger 0.8.0 has kernels for these families that were not read; or those of the Hub were not.
inline constexpr ValidityRule kLigerOfFamily = {
    .name = "unsupported: liger_kernel",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.liger_kernel == LigerKernel::kNorms
                     ? !hub_kernels_of(job.model).is_read
                     : job.profile.liger_kernel != LigerKernel::kOff &&
                           class_of(job.model).liger == LigerUse::kNotModelled;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "liger_kernel",
                              std::string(name_of(job.profile.liger_kernel)) +
                                  " with model.family " + job.model.family,
                              "off");
        }};

// Losses that read the head's weight in place of calling the head have neither its bias nor a
// packed weight.
inline constexpr ValidityRule kLossesOfPlainHeads = {
    .name = "unsupported: head_loss",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const HeadLoss kind = job.profile.head_loss;
          const bool calls_head =
              kind == HeadLoss::kStock || kind == HeadLoss::kPerToken || kind == HeadLoss::kTwice;
          return !calls_head && (job.model.head_bias || job.quantized.takes_head);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "head_loss",
                              std::string(name_of(job.profile.head_loss)) +
                                  (job.model.head_bias ? " with a head that has a bias"
                                                       : " with a head that is quantized"),
                              "stock");
        }};

// GptOssAttention: scaled_dot_product_attention and FlashAttention 2 take no sinks. ZeRO divides
// sinks that FlashAttention 3 gives no gradient, which was not read.
inline constexpr ValidityRule kSinksAreEager = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.attention_backend != AttentionBackend::kAuto &&
                 job.profile.attention_backend != AttentionBackend::kUnfused &&
                 (class_of(job.model).attends_in_fp32 ||
                  std::ranges::any_of(job.model.layers, &LayerSpec::has_sinks));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend", name_of(job.profile.attention_backend),
                              class_of(job.model).attends_in_fp32
                                  ? "auto or unfused with model.family " + job.model.family
                                  : "auto or unfused with attention sinks");
        }};

inline constexpr ValidityRule kPositionsOfFamily = {
    .name = "unsupported: model.learned_positions",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return (job.model.learned_positions > 0) != class_of(job.model).has_learned_positions;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.learned_positions",
              number_text(job.model.learned_positions) + " with model.family " + job.model.family,
              "0, or as many as gpt2 has");
        }};

// Positions beyond the table have no row (models/gpt2/modeling_gpt2.py wpe).
inline constexpr ValidityRule kSequenceOfPositions = {
    .name = "sequence_within_learned_positions",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.model.learned_positions > 0 &&
                 job.sequence_length > job.model.learned_positions;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "sequence_length " + number_text(job.sequence_length) + " of a model with " +
                 number_text(job.model.learned_positions) +
                 " learned positions; valid: at most as many";
        }};

// Of Falcon, GPT-2 and Llama 4, which transformers refuses to load with FlashAttention
// (models/llama4/modeling_llama4.py _supports_flash_attn).
inline constexpr ValidityRule kEagerAttentionAsRead = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          using enum AttentionBackend;
          const AttentionBackend backend = job.profile.attention_backend;
          const ModelClass& family = class_of(job.model);
          return (backend == kUnfused && family.has_own_eager_attention) ||
                 (backend == kFlash && family.has_dense_experts);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend",
                              std::string(name_of(job.profile.attention_backend)) +
                                  " with model.family " + job.model.family,
                              class_of(job.model).has_dense_experts ? "auto" : "auto or flash");
        }};

// Trainer.__init__ refuses to fine-tune a purely quantized model.
inline constexpr ValidityRule kQuantizedNeedsAdapters = {
    .name = "quantized_weights_need_adapters",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.quantized.kind != Quantization::kNone && job.adapters.rank == 0;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "quantization " + std::string(name_of(job.quantized.kind)) +
                 " of weights that are to be trained; valid: with adapters, or no quantization";
        }};

// The classes have the heads, and the keys of other layers, that their models have.
inline constexpr ValidityRule kHeadsOfFamily = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return !class_of(job.model).has_value_norm &&
                 std::ranges::any_of(job.model.layers, [](const LayerSpec& layer) {
                   return layer.heads != AttentionHeads{} ||
                          layer.key_values != KeyValueSource::kOwn;
                 });
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.layers",
              "attention heads that differ by layer, or keys of earlier layers, in "
              "a model of " +
                  (job.model.family.empty() ? std::string("no family") : job.model.family),
              "those of gemma4_text");
        }};

// Llama 4's experts see every token as batched products of their whole weights. Maverick's layers
// with an FFN, whose heads have no norms, and packed experts were not read.
inline constexpr ValidityRule kDenseExpertsAsRead = {
    .name = "unsupported: model.family",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const FrameworkProfile& profile = job.profile;
          return class_of(job.model).has_dense_experts &&
                 (profile.linear_experts || profile.quantizes_experts ||
                  profile.expert_kernels != ExpertKernels::kGrouped ||
                  !std::ranges::all_of(job.model.layers, &LayerSpec::is_moe));
        },
    .explain =
        [](const Job& job, const Plan&) {
          const bool is_whole = std::ranges::all_of(job.model.layers, &LayerSpec::is_moe);
          return not_modelled(
              job, "model.family",
              job.model.family +
                  (is_whole ? " with experts packed, or by kernels" : " with FFNs between experts"),
              "those whose experts stand in every layer, in transformers' products");
        }};

// Fused kernels of axolotl for them were not read.
inline constexpr ValidityRule kKernelsOfValueNorms = {
    .name = "unsupported: adapter_kernels",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return class_of(job.model).has_value_norm &&
                 (job.profile.adapter_kernels || job.profile.fused_norm_rotary);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job,
                              job.profile.adapter_kernels ? "adapter_kernels" : "fused_norm_rotary",
                              "true with model.family " + job.model.family, "false");
        }};

// Latent attention, sinks and layers without attention are not divided by heads here.
inline bool exchanges_heads(const ModelSpec& model) {
  return !model.is_mla() && std::ranges::all_of(model.layers, [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kAttention && !layer.has_sinks &&
           layer.heads == AttentionHeads{} && layer.key_values == KeyValueSource::kOwn;
  });
}

// Ring attention keeps partial outputs in fp32 beside buffers of keys and values, whose number its
// implementations differ in; nor are latent attention's heads exchanged.
inline constexpr ValidityRule kUlyssesOnly = {
    .name = "unsupported: cp_method",
    .reads = {PlanField::kCp, PlanField::kCpMethod},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && (plan.cp_method != CpMethod::kA2a || !exchanges_heads(job.model));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return plan.cp_method != CpMethod::kA2a
                     ? not_modelled(job, "cp_method", name_of(plan.cp_method),
                                    "a2a (Ulysses), or cp 1")
                     : not_modelled(
                           job, "cp",
                           number_text(plan.cp) + " without plain attention in every layer", "1");
        }};

// Losses that look for the last token of each sequence, which one rank of a group alone has.
inline constexpr ValidityRule kSequencesOfGroups = {
    .name = "unsupported: head_loss",
    .reads = {PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          using enum HeadLoss;
          const HeadLoss kind = job.profile.head_loss;
          return plan.cp > 1 &&
                 (kind == kChunked || kind == kFusedLinear || kind == kByProbability ||
                  kind == kByEntropy || kind == kByEntropyOfRows);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(
              job, "head_loss",
              std::string(name_of(job.profile.head_loss)) + " with cp " + number_text(plan.cp),
              "stock, per_token, twice or cut_cross_entropy, or cp 1");
        }};

inline constexpr ValidityRule kSequenceByRanks = {
    .name = "sequence_divisible_by_ulysses_ranks",
    .reads = {PlanField::kCp},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.cp > 1 && job.sequence_length % plan.cp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("sequence_length", job.sequence_length, "cp", plan.cp);
        }};

}  // namespace shardplan::huggingface
