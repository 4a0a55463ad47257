#include "estimator/frameworks/megatron/optimizer_rows.h"

#include "estimator/frameworks/megatron/state_block.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {
namespace {

void add_optimizer_row(MegatronState& state, std::string_view name, std::int64_t elements,
                       DType dtype, Phase first, std::string_view formula) {
  state.add({.component = Component::kOptimizer,
             .name = name,
             .elements = elements,
             .dtype = dtype,
             .first = first,
             .made_by_first_step = first == Phase::kForward,
             .formula = formula});
}

constexpr std::string_view kWholeMoment =
    "t*N: a moment of whole parameters, made by the first optimizer step";

// Main parameters (core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params), one moment of
// matrices, both of what AdamW updates.
void add_muon(MegatronState& state, const MegatronGroup& group) {
  if (state.plan.precision != Precision::kFp32) {
    add_optimizer_row(state, group.names.master, group.updated, DType::kFp32, Phase::kBuilt,
                      "N, with dist_muon of the fullest rank: main parameters");
  }
  add_optimizer_row(state, group.names.exp_avg, group.updated, DType::kFp32, Phase::kForward,
                    "of these the moment of matrices and AdamW's first");
  add_optimizer_row(state, group.names.exp_avg_sq, group.second_moment, DType::kFp32,
                    Phase::kForward, "of embedding, head and vectors, which AdamW updates");
}

void add_optimizer(MegatronState& state, const MegatronGroup& group) {
  const Plan& plan = state.plan;
  if (state.has_muon()) {
    add_muon(state, group);
    return;
  }
  const std::int64_t share =
      state.shards_optimizer() ? div_ceil(group.elements, group.shard) : group.elements;
  const std::int64_t on_gpu = scaled(share, 1 - plan.offload.optimizer);
  const std::int64_t moments =
      group.whole > 0 ? scaled(group.whole, 1 - plan.offload.optimizer) : on_gpu;
  if (plan.precision != Precision::kFp32) {
    // Those in fewer bits belong to FusedAdam, whose first step makes them.
    add_optimizer_row(state, group.names.master, on_gpu, plan.master_dtype,
                      plan.master_dtype == DType::kFp32 ? Phase::kBuilt : Phase::kForward,
                      "N/S: main parameters of the optimizer (N without ZeRO)");
  }
  add_optimizer_row(
      state, group.names.exp_avg, moments, plan.exp_avg_dtype, Phase::kForward,
      group.whole > 0 ? kWholeMoment : "N/S: first moment, made by the first optimizer step");
  if (state.job.optimizer == OptimizerKind::kAdamW) {
    add_optimizer_row(
        state, group.names.exp_avg_sq, moments, plan.exp_avg_sq_dtype, Phase::kForward,
        group.whole > 0 ? kWholeMoment : "N/S: second moment, made by the first optimizer step");
  }
  if (state.shards_optimizer() && !state.shards_gradients()) {
    // The buffer's shard is whole; the rank with no padding in it holds this much more.
    const std::int64_t padded =
        div_ceil(group.elements + group.padding + group.fp8_padding, group.shard);
    add_optimizer_row(state, group.names.optimizer_padding,
                      scaled(padded - share, 1 - plan.offload.optimizer), plan.master_dtype,
                      Phase::kBuilt, "(N+padding)/S - N/S: the fullest shard of the padded buffer");
  }
}

}  // namespace

void add_megatron_group(MegatronState& state, const MegatronGroup& group) {
  const std::int64_t share = div_ceil(group.elements, group.shard);
  state.add({.component = Component::kParameters,
             .name = group.names.parameters,
             .elements = state.shards_parameters() ? share : group.elements - group.fp8,
             .dtype = state.parameter_dtype(),
             .first = Phase::kStartUp,
             .formula = state.keeps_fp8()
                            ? "N-L: embedding, head, norms, router and biases stay in bf16"
                            : "N (N/S under ZeRO-3): working copy of the parameters"});
  state.add({.component = Component::kGradients,
             .name = group.names.gradients,
             .elements = state.shards_gradients() ? share : group.elements,
             .dtype = state.grad_dtype(),
             .first = Phase::kStartUp,
             .formula = "N (N/S under ZeRO-2 and 3): main gradients, accumulated in place"});
  if (state.shards_optimizer()) {
    state.add({.component = Component::kParameters,
               .name = group.names.parameters_padding,
               .elements = state.shards_parameters() || state.gathers_apart() ? 0 : group.padding,
               .dtype = state.parameter_dtype(),
               .first = Phase::kStartUp,
               .formula = "starts at multiples of 64 elements, buckets end at lcm(S, 128)"});
    state.add({.component = Component::kGradients,
               .name = group.names.gradients_padding,
               .elements = state.shards_gradients() ? 0 : group.padding + group.fp8_padding,
               .dtype = state.grad_dtype(),
               .first = Phase::kStartUp,
               .formula = "starts at multiples of 64 elements, buckets end at lcm(S, 128)"});
  }
  add_optimizer(state, group);
}

}  // namespace shardplan::megatron
