// The calculator of the author of arXiv 2411.06465 (okoge-kaz/okoge-kaz.github.io
// static/js/memory-estimator.js), with its simplifications kept: embedding and head on every rank,
// every layer of a mixture of experts the same, p microbatches in flight on every stage,
// interleaving divides them, context parallelism does not shard the optimizer.
// Letters: s b h f L a k of the papers, t p v c D e parallel sizes, E experts, topk of them used.
#include "estimator/frameworks/fujii2024/formula.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "estimator/plan/capacity.h"

namespace shardplan::fujii2024 {
namespace {

constexpr std::int64_t kCommunicatorBytes = 500'000'000;  // per dimension of more than one rank

bool has_experts(const ModelSpec& model) {
  return model.moe.num_experts > 1;
}

// The "standalone embedding" option: embedding and head count as a layer each.
bool has_standalone_embedding(const Job& job) {
  return job.profile.account_for_embedding_in_split && job.profile.account_for_loss_in_split;
}

std::int64_t layers_per_stage(const Job& job, const Plan& plan) {
  const std::int64_t layers = job.model.num_layers();
  if (plan.pp == 1 || !has_standalone_embedding(job)) {
    return div_ceil(layers, plan.pp);
  }
  if (plan.pp > 2 && (layers + 2) % plan.pp == 0) {
    return (layers + 2) / plan.pp;
  }
  return div_ceil(layers, std::max<std::int64_t>(plan.pp - 2, 1));
}

// Layers whose activations one microbatch keeps on a stage.
std::int64_t active_layers(const Job& job, const Plan& plan) {
  return plan.pp > 1 && plan.schedule == Schedule::kInterleaved1F1B
             ? div_ceil(job.model.num_layers(), plan.pp * plan.vpp)
             : layers_per_stage(job, plan);
}

// The formula has no timeline: everything lives as long as the step.
Event start() {
  return {.name = "start"};
}
Event end() {
  return {.name = "end"};
}

struct Ledger {
  const Job& job;
  const Plan& plan;
  StageMemory stage;

  void add(Row row) {
    stage.components[static_cast<std::size_t>(row.component)] += row.total_bytes();
    stage.rows.push_back(std::move(row));
  }
};

DType weight_dtype(Precision precision) {
  switch (precision) {
    case Precision::kBf16: return DType::kBf16;
    case Precision::kFp16: return DType::kFp16;
    case Precision::kFp8: return DType::kFp8;
    case Precision::kFp32: break;
  }
  return DType::kFp32;
}

struct Weights {
  std::string_view name;
  std::int64_t elements = 0;
  std::string_view formula;
};

std::array<Weights, 4> weights_of(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const std::int64_t h = model.hidden;
  const std::int64_t layers = layers_per_stage(job, plan);
  const std::int64_t attention =
      2 * h * (model.num_heads + model.num_kv_heads) * model.head_dim * layers;
  const MoeSpec& moe = model.moe;
  const std::int64_t experts =
      3 * h * (moe.num_experts * moe.expert_ffn + moe.shared_ffn) + h * moe.num_experts;
  const std::int64_t ffn = has_experts(model) ? div_ceil(experts * layers, plan.tp * plan.ep)
                                              : div_exact(3 * h * model.ffn * layers, plan.tp);
  const std::int64_t tables = (model.tied_embeddings ? 1 : 2) * h * model.vocab;
  return {
      {{"attention", div_exact(attention, plan.tp), "2h(a+k)d * ceil(L/p) / t"},
       {"ffn", ffn,
        has_experts(model) ? "(3h(E*fe + fs) + h*E) * ceil(L/p) / (t*e)" : "3hf * ceil(L/p) / t"},
       {"norms", 2 * h * layers + h, "2h * ceil(L/p) + h"},
       {"embedding_and_head", div_exact(tables, plan.tp),
        "2hV / t on every rank; hV / t when tied"}}};
}

void add_state(Ledger& ledger) {
  const Job& job = ledger.job;
  const Plan& plan = ledger.plan;
  const DType dtype = weight_dtype(plan.precision);
  std::int64_t elements = 0;
  for (const Weights& weights : weights_of(job, plan)) {
    elements += weights.elements;
    ledger.add({.component = Component::kParameters,
                .name = std::string(weights.name),
                .elements = weights.elements,
                .dtype = dtype,
                .bytes = weights.elements * bytes_of(dtype),
                .copies = 1,
                .born = start(),
                .dies = end(),
                .formula = std::string(weights.formula)});
  }
  ledger.stage.parameters = elements;
  ledger.add({.component = Component::kGradients,
              .name = "gradients",
              .elements = elements,
              .dtype = plan.grad_dtype,
              .bytes = elements * bytes_of(plan.grad_dtype),
              .copies = 1,
              .born = start(),
              .dies = end(),
              .formula = "one per parameter"});
  const bool is_adam = job.optimizer == OptimizerKind::kAdamW;
  const std::int64_t shards = plan.zero == 0 ? 1 : data_parallel_size(job, plan);
  ledger.add({.component = Component::kOptimizer,
              .name = is_adam ? "master_and_two_moments" : "master_and_momentum",
              .elements = div_ceil((is_adam ? 3 : 2) * elements, shards),
              .dtype = DType::kFp32,
              .bytes = div_ceil((is_adam ? 12 : 8) * elements, shards),
              .copies = 1,
              .born = start(),
              .dies = end(),
              .formula = is_adam ? "12N / D with the distributed optimizer, else 12N"
                                 : "8N / D with the distributed optimizer, else 8N"});
}

// s*b*numerator/denominator bytes of one layer, divided by t*c, alive in active layers * p copies.
void add_activation(Ledger& ledger, std::string name, std::int64_t numerator,
                    std::int64_t denominator, std::string formula) {
  const Plan& plan = ledger.plan;
  const std::int64_t common = std::gcd(numerator, denominator);
  const std::int64_t tokens = ledger.job.sequence_length * plan.micro_batch;
  const std::int64_t bytes =
      div_ceil(tokens * (numerator / common), plan.tp * plan.cp * (denominator / common));
  ledger.add({.component = Component::kActivations,
              .name = std::move(name),
              .elements = div_ceil(bytes, 2),
              .dtype = DType::kBf16,
              .bytes = bytes,
              .copies = active_layers(ledger.job, plan) * plan.pp,
              .born = start(),
              .dies = end(),
              .formula = std::move(formula) + " / (t*c), times ceil(L/(p*v)) * p"});
}

// arXiv 2411.06465: s*b*h*(12 + 4k/a + 8f/h) bytes per layer; experts 2sb(h + 4*fe*topk).
void add_activations(Ledger& ledger) {
  const ModelSpec& model = ledger.job.model;
  const std::int64_t h = model.hidden;
  add_activation(ledger, "attention", h * (6 * model.num_heads + 4 * model.num_kv_heads),
                 model.num_heads, "s*b*h*(6 + 4k/a)");
  if (has_experts(model)) {
    add_activation(ledger, "ffn", 2 * (h + 4 * model.moe.expert_ffn * model.moe.topk), 1,
                   "2*s*b*(h + 4*fe*topk)");
  } else {
    add_activation(ledger, "ffn", 2 * (h + 4 * model.ffn), 1, "2*s*b*(h + 4f)");
  }
  add_activation(ledger, "norms", 4 * h, 1, "4*s*b*h");
}

void add_communicators(Ledger& ledger) {
  const Plan& plan = ledger.plan;
  std::int64_t dimensions = 0;
  for (const std::int64_t ranks :
       {plan.tp, plan.pp, data_parallel_size(ledger.job, plan), plan.cp, plan.ep}) {
    dimensions += ranks > 1 ? 1 : 0;
  }
  ledger.add({.component = Component::kCommunication,
              .name = "communicators",
              .elements = kCommunicatorBytes,
              .dtype = DType::kBool,
              .bytes = kCommunicatorBytes,
              .copies = dimensions,
              .born = start(),
              .dies = end(),
              .formula = "0.5e9 for each of TP, PP, DP, CP, EP with more than one rank"});
}

// "more than 100 % fails, 80 to 100 % warns, at most 80 % fits", of the decimal capacity.
Fit fit_of(std::int64_t bytes, std::int64_t capacity_bytes) {
  if (bytes > capacity_bytes) {
    return Fit::kDoesNotFit;
  }
  return bytes > capacity_bytes / 5 * 4 ? Fit::kTight : Fit::kFits;
}

}  // namespace

MemoryEstimate estimate_by_formula(const Job& job, const Plan& plan) {
  Ledger ledger{.job = job, .plan = plan, .stage = {}};
  ledger.stage.num_layers = layers_per_stage(job, plan);
  add_state(ledger);
  ledger.stage.state_bytes =
      std::reduce(ledger.stage.components.begin(), ledger.stage.components.end(), std::int64_t{0});
  add_activations(ledger);
  add_communicators(ledger);
  StageMemory& stage = ledger.stage;
  const std::int64_t total =
      std::reduce(stage.components.begin(), stage.components.end(), std::int64_t{0});
  // The paper has one number; its communicators are part of it.
  stage.built_bytes = stage.state_bytes;
  stage.first_step_bytes = total;
  stage.steady_bytes = total;
  stage.allocated_bytes = total;
  stage.reserved_bytes = total;
  stage.required_bytes = total;
  stage.device_used_bytes = total;
  stage.moments = {{.name = "whole step", .allocated_bytes = total}};

  MemoryEstimate estimate;
  estimate.fit = fit_of(total, nominal_capacity_bytes(job.cluster));
  estimate.stages = {std::move(stage)};
  estimate.assumptions = {
      {.text = "fujii2024: sequence parallelism, fused attention, unfused SwiGLU (8f per token)"},
      {.text = "fujii2024: embedding and head on every rank, p microbatches on every stage"},
      {.text = "fujii2024: fits at 80 % of the nominal (decimal) capacity or less"}};
  estimate.not_counted = {"logits and loss",           "CUDA context and library workspaces",
                          "allocator fragmentation",   "gathered parameters and gradient buckets",
                          "pipeline transfer buffers", "imbalance between experts"};
  return estimate;
}

}  // namespace shardplan::fujii2024
