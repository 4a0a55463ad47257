// What the models of pieces/huggingface know, and what their libraries accept, whoever trains them.
// Sources: transformers 5.17 trainer.py, integrations/sdpa_attention.py; peft 0.21.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"

namespace shardplan::huggingface {

// integrations/sdpa_attention.py, use_gqa_in_sdpa: of wider heads keys and values are repeated.
inline constexpr std::int64_t kWidestHead = 256;
inline constexpr ValidityRule kHeadDim = {
    .name = "unsupported: model.head_dim",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.qk_head_dim() > kWidestHead; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.head_dim", number_text(job.model.qk_head_dim()),
                              "at most " + number_text(kWidestHead));
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

// Liger 0.8.0 has kernels for these families that were not read.
inline constexpr ValidityRule kLigerOfFamily = {
    .name = "unsupported: liger_kernel",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.liger_kernel != LigerKernel::kOff &&
                 class_of(job.model).liger == LigerUse::kNotModelled;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "liger_kernel", "on with model.family " + job.model.family,
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

// GptOssAttention: scaled_dot_product_attention and FlashAttention 2 take no sinks.
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

// Of Falcon and GPT-2.
inline constexpr ValidityRule kEagerAttentionAsRead = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.attention_backend == AttentionBackend::kUnfused &&
                 class_of(job.model).has_own_eager_attention;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend",
                              std::string(name_of(job.profile.attention_backend)) +
                                  " with model.family " + job.model.family,
                              "auto or flash");
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

// Latent attention, sinks and layers without attention are not divided by heads here.
inline bool exchanges_heads(const ModelSpec& model) {
  return !model.is_mla() && std::ranges::all_of(model.layers, [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kAttention && !layer.has_sinks;
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
