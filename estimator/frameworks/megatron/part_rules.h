// What parts of a model that not all have ask of a plan under Megatron-LM core_v0.16.1 with
// Transformer Engine 2.9: attention sinks, biases of experts and the bounded gate of gpt_oss, gated
// delta nets and gated attention of qwen3_next and qwen3_5.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/fp8_rules.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/ledger/layer_blocks.h"
#include "estimator/plan/parameters.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// pytorch/attention/dot_product_attention/utils.py, get_attention_backend: FlashAttention takes no
// sinks, and named alone leaves no kernel.
inline constexpr ValidityRule kSinksHaveNoFlash = {
    .name = "sinks_need_fused_or_unfused_attention",
    .reads = {},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_sinks(job) && attention_backend(job, plan) == AttentionBackend::kFlash;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "attention_backend flash with attention sinks (" + job.model.family +
                 "), which leaves Transformer Engine no kernel; valid: auto, fused, unfused";
        }};
// Core's own attention has another softmax for them, which its rows do not have.
inline constexpr ValidityRule kSinkBackends = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return has_sinks(job) && has_local_layers(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend",
                              "local with attention sinks (" + job.model.family + ")",
                              "auto, fused, unfused");
        }};

// The same function, context_parallel.
inline constexpr ValidityRule kSinksNeedA2a = {
    .name = "sinks_with_cp_need_a2a",
    .reads = {PlanField::kCp, PlanField::kCpMethod},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && plan.cp_method != CpMethod::kA2a && has_sinks(job);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "cp " + number_text(plan.cp) + " with cp_method " +
                 std::string(name_of(plan.cp_method)) + " and attention sinks (" +
                 job.model.family + "); valid: cp_method a2a, or cp 1";
        }};

// core/transformer/transformer_config.py, __post_init__.
inline constexpr ValidityRule kBiasedExpertsNeedEtp1 = {
    .name = "biased_experts_need_etp_1",
    .reads = {PlanField::kEtp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.moe.biased_experts && plan.etp > 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "etp " + number_text(plan.etp) + " with biases of experts; valid: etp 1";
        }};

// core/transformer/moe/shared_experts.py, __init__.
inline constexpr ValidityRule kBiasedExpertsAlone = {
    .name = "biased_experts_without_shared",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.model.moe.biased_experts && job.model.moe.shared_ffn > 0;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "moe.shared_ffn " + number_text(job.model.moe.shared_ffn) +
                 " with biases of experts; valid: experts without biases (--disable-bias-linear), "
                 "or no shared ones";
        }};

// core/transformer/mlp.py: dense FFNs and shared experts bound their gates by operators that their
// rows do not have, and not at all where the activation is fused; nor do the rows of experts that
// take turns say which of them hold bounded gates.
inline constexpr ValidityRule kClampedExpertsOnly = {
    .name = "unsupported: model.activation",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const ModelSpec& model = job.model;
          return model.activation == Activation::kClampedSwiglu &&
                 (model.moe.shared_ffn > 0 || !job.profile.moe_grouped_gemm ||
                  std::ranges::any_of(model.layers,
                                      [](const LayerSpec& layer) { return !layer.is_moe; }));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.activation", "clamped SwiGLU (" + job.model.family + ")",
                              "of routed experts alone, with moe_grouped_gemm true");
        }};

inline bool has_delta_nets(const Job& job) {
  return std::ranges::any_of(job.model.layers, [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kGatedDelta;
  });
}
inline bool has_gated_attention(const Job& job) {
  return job.model.attention_gate != AttentionGate::kNone;
}
inline bool has_newer_mixers(const Job& job) {
  return has_delta_nets(job) || has_gated_attention(job) || is_hybrid(job);
}
// "gated delta nets (qwen3_next)"
inline std::string newer_mixers(const Job& job) {
  return std::string(has_delta_nets(job) ? "gated delta nets ("
                     : is_hybrid(job)    ? "layers of one part ("
                                         : "gated attention (") +
         job.model.family + ")";
}

// transformer_config.py, __post_init__; core/ssm/gated_delta_net.py.
inline constexpr ValidityRule kDeltaNeedsCp1 = {
    .name = "gated_delta_net_needs_cp_1",
    .reads = {PlanField::kCp},
    .broken = [](const Job& job, const Plan& plan) { return plan.cp > 1 && has_delta_nets(job); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "cp " + number_text(plan.cp) + " with " + newer_mixers(job) + "; valid: cp 1";
        }};

inline constexpr ValidityRule kDeltaHeadsByTp = {
    .name = "delta_heads_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return (job.model.delta.key_heads % plan.tp != 0 ||
                  job.model.delta.value_heads % plan.tp != 0) &&
                 has_delta_nets(job);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const DeltaSpec& delta = job.model.delta;
          return delta.key_heads % plan.tp != 0
                     ? not_divisible("delta.key_heads", delta.key_heads, "tp", plan.tp)
                     : not_divisible("delta.value_heads", delta.value_heads, "tp", plan.tp);
        }};

// Linear layers of delta nets and Mamba-2 (pytorch/utils.py, assert_dim_for_fp8_exec;
// core/ssm/gated_delta_net.py and mamba_mixer.py, __init__). The smaller of two products in front
// is in fp8 where weights are not (mcore-bridge 1.6.5 model/modules/gated_delta_net.py).
inline bool has_odd_fp8_widths(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const DeltaSpec& delta = model.delta;
  const MambaSpec& mamba = model.mamba;
  const std::int64_t multiple = fp8_width_multiple(job);
  const auto is_odd = [&](std::int64_t width) { return width / plan.tp % multiple != 0; };
  const std::int64_t mixed = 2 * (delta.key_width() + delta.value_width());
  const std::int64_t steps = 2 * delta.value_heads;
  const bool is_two = job.profile.decoupled_in_proj;
  const bool odd_delta = is_odd(delta.value_width()) || is_odd(is_two ? mixed : mixed + steps) ||
                         (is_two && !job.profile.fp8_param_gather && is_odd(steps));
  const bool odd_mamba = is_odd(mamba.inner) ||
                         is_odd(2 * (mamba.inner + mamba.groups * mamba.state) + mamba.num_heads);
  return (has_delta_nets(job) && odd_delta) || (is_hybrid(job) && odd_mamba);
}
inline constexpr ValidityRule kMixerFp8Widths = {
    .name = "fp8_mixer_widths_divisible",
    .reads = {PlanField::kTp, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp8 && has_odd_fp8_widths(job, plan);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "precision fp8 with " + newer_mixers(job) + " over tp " + number_text(plan.tp) +
                 ": products in front and behind are not divisible by " +
                 number_text(fp8_width_multiple(job)) + "; valid: multiples of it, or bf16";
        }};

// Userbuffers know no second product, and layers of two microbatches are not described with it.
inline constexpr ValidityRule kDecoupledProducts = {
    .name = "unsupported: decoupled_in_proj",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.decoupled_in_proj && (job.profile.tp_overlap != TpOverlap::kExposed ||
                                                   job.profile.overlap_moe_expert_parallel_comm);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "decoupled_in_proj",
                              "true with tp_overlap or overlap_moe_expert_parallel_comm",
                              "tp_overlap exposed and overlap_moe_expert_parallel_comm false");
        }};

// Buckets of Megatron-FSDP and Muon's matrices are counted of layers of equal mixers.
inline constexpr ValidityRule kMixersZero = {
    .name = "unsupported: zero",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.zero > 1 && (has_delta_nets(job) || is_hybrid(job));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "zero", number_text(plan.zero) + " with " + newer_mixers(job),
                              "0, 1");
        }};

inline constexpr ValidityRule kMixersOptimizer = {
    .name = "unsupported: optimizer",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return uses_muon(job) && has_newer_mixers(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "optimizer",
                              std::string(name_of(job.optimizer)) + " with " + newer_mixers(job),
                              "adamw");
        }};

// experimental_attention_variant_module_specs.py knows Transformer Engine's layers alone;
// deterministic delta nets run operator by operator.
inline constexpr ValidityRule kMixersBackends = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return has_newer_mixers(job) &&
                 (has_local_layers(job) || job.profile.deterministic_attention);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend",
                              std::string(has_local_layers(job) ? "local" : "deterministic") +
                                  " with " + newer_mixers(job),
                              "others, not deterministic");
        }};

inline constexpr ValidityRule kLayerKinds = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return layers_vary(job.model) && num_layer_kinds(job.model) > kMostLayerKinds;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.layers",
              number_text(num_layer_kinds(job.model)) + " kinds (" + job.model.family + ")",
              "up to " + number_text(kMostLayerKinds));
        }};

}  // namespace shardplan::megatron
