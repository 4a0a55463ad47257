#include "estimator/frameworks/megatron/optimizer_step.h"

#include <algorithm>
#include <string_view>

#include "estimator/frameworks/megatron/fp8_rows.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/megatron/state_block.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {
namespace {

// Experts have an optimizer of their own, which steps after the dense one, where they communicate
// (core/optimizer/__init__.py, get_megatron_optimizer; core/tensor_parallel/layers.py,
// explicit_expert_comm).
bool steps_experts_apart(const MegatronState& state) {
  return state.plan.ep > 1 || (state.plan.tp > 1 && state.plan.sequence_parallel);
}

// Transformer Engine v2.9 pytorch/optimizers/fused_adam.py, step (475-733): moments in fewer bits
// and main parameters in fp16 are copied to fp32 for the kernel (get_unscaled_state); lists of them
// outlive their group of parameters, so that all are there at the end, where bf16 moments are cast
// back one by one (_apply_scale). A low half of main parameters (store_param_remainders) is taken
// as it is.
void add_widened_state(MegatronState& state, std::int64_t elements) {
  const Plan& plan = state.plan;
  const std::int64_t copies = (plan.exp_avg_dtype != DType::kFp32 ? 1 : 0) +
                              (plan.exp_avg_sq_dtype != DType::kFp32 ? 1 : 0) +
                              (plan.master_dtype == DType::kFp16 ? 1 : 0);
  state.add({.component = Component::kTemporaries,
             .name = kWidenedStateRow,
             .elements = copies * scaled(elements, 1 - plan.offload.optimizer),
             .dtype = DType::kFp32,
             .first = Phase::kOptimizer,
             .last = Phase::kOptimizer,
             .formula = "N/S for each moment not in fp32 (and main parameters in fp16): FusedAdam "
                        "works on fp32 copies",
             .is_split = true});
  const bool casts = plan.exp_avg_dtype == DType::kBf16 || plan.exp_avg_sq_dtype == DType::kBf16;
  state.add({.component = Component::kTemporaries,
             .name = kCastMomentRow,
             .elements = casts ? std::min(state.tensors.largest_dense_tensor, elements) : 0,
             .dtype = DType::kBf16,
             .first = Phase::kOptimizer,
             .last = Phase::kOptimizer,
             .formula = "largest tensor's share: a moment on its way back to bf16"});
}

// core/optimizer/optimizer_config.py:355-362: with fp8 recipes but the delayed one Megatron-LM
// hands FusedAdam its own fp32 main parameters and, in their type, gradients.
bool hands_over_main_parameters(const MegatronState& state) {
  return state.plan.precision == Precision::kFp8 &&
         state.job.profile.fp8_recipe != Fp8Recipe::kDelayed &&
         state.plan.master_dtype == DType::kFp32;
}

void add_muon_temporary(MegatronState& state, std::string_view name, std::int64_t elements,
                        std::int64_t copies, std::string_view formula) {
  state.add({.component = Component::kTemporaries,
             .name = name,
             .elements = elements,
             .dtype = DType::kFp32,
             .copies = copies,
             .first = Phase::kOptimizer,
             .last = Phase::kOptimizer,
             .ends_before_made = true,  // AdamW's moments, which are more
             .formula = formula});
}

}  // namespace

void add_optimizer_step(MegatronState& state) {
  const Plan& plan = state.plan;
  const bool shards = state.shards_optimizer();
  const std::int64_t dense = state.has_muon()
                                 ? state.muon.dense
                                 : div_ceil(state.tensors.dense, shards ? state.dense_shard : 1);
  const std::int64_t expert = state.has_muon()
                                  ? state.muon.expert
                                  : div_ceil(state.tensors.expert, shards ? state.expert_shard : 1);
  const std::int64_t share = dense + expert;
  const bool precision_aware = is_precision_aware(plan) && !state.has_muon();
  const bool fsdp = is_megatron_fsdp(state.job, plan);
  if (state.grad_dtype() != DType::kFp32 &&
      (!precision_aware || hands_over_main_parameters(state))) {
    state.add({.component = Component::kTemporaries,
               .name = "optimizer.fp32_gradients",
               .elements = share,
               .dtype = DType::kFp32,
               .first = fsdp ? Phase::kReduction : Phase::kOptimizer,
               .formula = "N/S: fp32 copies of the gradients, until the next step clears them "
                          "(core/optimizer/{optimizer,distrib_optimizer}.py, "
                          "_copy_model_grads_to_main_grads, zero_grad)"});
  }
  const std::int64_t at_once = steps_experts_apart(state) ? std::max(dense, expert) : share;
  if (precision_aware) {
    add_widened_state(state, at_once);
  }
  // The update's own temporaries are larger, and gone by then.
  if (!precision_aware && state.job.profile.fused_optimizer) {
    const std::int64_t linear = div_ceil(state.tensors.dense_linear, state.dense_shard);
    state.add(cast_main_parameters(
        state.job, plan, steps_experts_apart(state) ? std::max(linear, expert) : linear + expert));
  }
  if (!state.job.profile.fused_optimizer) {
    state.add({.component = Component::kTemporaries,
               .name = kStepTemporaryRow,
               .elements = state.has_muon() ? state.muon.dense_second_moment : at_once,
               .dtype = DType::kFp32,
               .first = Phase::kOptimizer,
               .last = Phase::kOptimizer,
               .formula = "N/S: torch's foreach AdamW makes one fp32 list of the roots of the "
                          "second moment (torch/optim/adam.py, _multi_tensor_adam)"});
  }
}

void add_muon_step(MegatronState& state) {
  const MuonTemporary& update = state.muon.temporary;
  add_muon_temporary(state, "muon.update", update.matrix, 3,
                     "r c: the matrix with the largest update orthogonalised, scaled, and scaled "
                     "again; of qkv its queries");
  add_muon_temporary(state, "muon.nesterov", update.changed, 1,
                     "r c: its gradient with Nesterov's momentum");
  add_muon_temporary(state, "muon.parts", update.parts, 1,
                     "r c: queries, keys and values of qkv copied apart");
  const MuonGather& gather = state.muon.gather;
  const std::int64_t ranks = std::max(gather.ranks, std::int64_t{1});
  const auto add_gather = [&](std::string_view name, std::int64_t elements, std::int64_t copies,
                              std::string_view formula) {
    state.add({.component = Component::kCommunication,
               .name = name,
               .elements = elements,
               .dtype = state.parameter_dtype(),
               .copies = copies,
               .first = Phase::kParameterGather,
               .last = Phase::kParameterGather,
               .formula = formula});
  };
  add_gather("muon.gathered_parameters", gather.all / ranks, gather.ranks,
             "N: updated parameters, a tensor for each data-parallel rank (N/ranks in the mean)");
  add_gather("muon.own_parameters", gather.own + gather.all % ranks, 1,
             "the fullest rank's own, flat");
  add_gather("muon.flat_parameters", gather.flat, 1,
             "N: where all ranks have as many, their flat copy");
}

}  // namespace shardplan::megatron
