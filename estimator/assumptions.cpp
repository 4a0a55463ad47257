#include "estimator/assumptions.h"

#include <algorithm>
#include <array>
#include <span>

#include "estimator/allocator_totals.h"
#include "estimator/validity.h"

namespace shardplan {
namespace {

struct Setting {
  Job job;
  Plan plan;
};

// A default and what would stand in its place. `applies` is false where the default has no effect.
struct Alternative {
  const char* assumed;
  const char* otherwise;
  bool (*applies)(const Setting& setting);
  void (*change)(Setting& setting);
};

bool has_experts(const Setting& setting) {
  return std::ranges::find(setting.job.model.layers, true, &LayerSpec::is_moe) !=
         setting.job.model.layers.end();
}

constexpr std::array kMegatronAlternatives = {
    Alternative{
        "the fused cross-entropy writes its gradient over the bf16 logits",
        "a Transformer Engine that keeps a separate fp32 gradient",
        [](const Setting& s) {
          return s.job.profile.cross_entropy == CrossEntropyKind::kTeFused &&
                 s.job.profile.cross_entropy_bytes_per_logit == 0;
        },
        [](Setting& s) { s.job.profile.cross_entropy = CrossEntropyKind::kTeFusedSeparateGrad; }},
    Alternative{"one kernel computes the gated activation",
                "an unfused product that keeps silu(gate)",
                [](const Setting& s) {
                  return s.job.profile.swiglu == SwigluKind::kFused && s.job.model.gated_ffn;
                },
                [](Setting& s) { s.job.profile.swiglu = SwigluKind::kUnfused; }},
    Alternative{
        "Transformer Engine caches one dummy gradient per weight shape", "a version without them",
        [](const Setting& s) {
          return s.job.profile.dummy_weight_gradients && s.job.profile.gradient_accumulation_fusion;
        },
        [](Setting& s) { s.job.profile.dummy_weight_gradients = false; }},
    Alternative{"the optimizer step is fused and needs no temporary", "an unfused AdamW",
                [](const Setting& s) { return s.job.profile.fused_optimizer; },
                [](Setting& s) { s.job.profile.fused_optimizer = false; }},
    Alternative{"attention's backward is the default kernel", "the deterministic kernel",
                [](const Setting& s) { return !s.job.profile.deterministic_attention; },
                [](Setting& s) { s.job.profile.deterministic_attention = true; }},
    Alternative{"communicators are created at first use", "all of them at start-up",
                [](const Setting& s) { return !s.job.profile.eager_communicators; },
                [](Setting& s) { s.job.profile.eager_communicators = true; }},
    Alternative{"the allocator has its default settings", "expandable segments",
                [](const Setting& s) { return s.job.profile.allocator == AllocatorKind::kCaching; },
                [](Setting& s) { s.job.profile.allocator = AllocatorKind::kCachingExpandable; }},
    Alternative{
        "tokens are spread evenly over the experts", "twice as many tokens on the busiest rank",
        [](const Setting& s) {
          return has_experts(s) && s.plan.ep > 1 && s.job.profile.moe_imbalance_factor == 1 &&
                 s.job.profile.moe_capacity_factor == 0;
        },
        [](Setting& s) { s.job.profile.moe_imbalance_factor = 2; }},
    Alternative{"gradients are accumulated and reduced in fp32", "in bf16",
                [](const Setting& s) {
                  return s.plan.grad_dtype == DType::kFp32 && s.plan.precision != Precision::kFp32;
                },
                [](Setting& s) { s.plan.grad_dtype = DType::kBf16; }},
};

constexpr std::array kNativeAlternatives = {
    Alternative{"attention's backward is the default kernel", "the deterministic kernel",
                [](const Setting& s) { return !s.job.profile.deterministic_attention; },
                [](Setting& s) { s.job.profile.deterministic_attention = true; }},
    Alternative{"the loss works on one piece of the tokens at a time",
                "half as many pieces, each twice as large",
                [](const Setting& s) { return s.job.profile.cross_entropy_chunks > 1; },
                [](Setting& s) {
                  s.job.profile.cross_entropy_chunks =
                      div_ceil(s.job.profile.cross_entropy_chunks, 2);
                }},
    Alternative{"gradients are accumulated and reduced in fp32", "in bf16",
                [](const Setting& s) { return s.plan.grad_dtype == DType::kFp32; },
                [](Setting& s) { s.plan.grad_dtype = DType::kBf16; }},
    Alternative{"tokens are spread evenly over the experts",
                "buffers for twice as many tokens on the busiest rank",
                [](const Setting& s) {
                  return has_experts(s) && s.plan.ep > 1 && s.plan.moe_buffer_factor == 1;
                },
                [](Setting& s) { s.plan.moe_buffer_factor = 2; }},
};

std::span<const Alternative> alternatives_of(MemoryModel model) {
  switch (model) {
    case MemoryModel::kFujii2024: return {};
    case MemoryModel::kMegatron: return kMegatronAlternatives;
    case MemoryModel::kNative: return kNativeAlternatives;
  }
  return {};
}

std::string_view name_of(Fit fit) {
  switch (fit) {
    case Fit::kFits: return "fits";
    case Fit::kTight: return "tight";
    case Fit::kDoesNotFit: return "does not fit";
  }
  return "";
}

}  // namespace

std::vector<Assumption> assumptions_behind(const Job& job, const Plan& plan) {
  std::vector<Assumption> assumptions;
  const Setting assumed{.job = job, .plan = plan};
  const Fit assumed_fit = fit_of_plan(job, plan);
  for (const Alternative& alternative : alternatives_of(job.profile.memory_model)) {
    if (!alternative.applies(assumed)) {
      continue;
    }
    Setting other = assumed;
    alternative.change(other);
    if (first_broken_rule(other.job, other.plan) != nullptr) {
      continue;
    }
    const Fit fit = fit_of_plan(other.job, other.plan);
    const bool decides = fit != assumed_fit;
    const std::string verdict =
        decides ? std::string(" would turn the verdict to: ") + std::string(name_of(fit))
                : " would not turn the verdict";
    assumptions.push_back(
        {.text = std::string(alternative.assumed) + "; " + alternative.otherwise + verdict,
         .decides = decides});
  }
  return assumptions;
}

std::vector<std::string> not_counted(const FrameworkProfile& profile) {
  switch (profile.memory_model) {
    case MemoryModel::kFujii2024: return {};
    case MemoryModel::kMegatron:
      return {"evaluation", "checkpoint save and load", "CUDA graphs", "user buffers of overlap",
              "other processes on the GPU"};
    case MemoryModel::kNative:
      return {"evaluation", "checkpoint save and load", "CUDA graphs",
              "other processes on the GPU"};
  }
  return {};
}

}  // namespace shardplan
