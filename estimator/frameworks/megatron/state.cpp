#include "estimator/frameworks/megatron/state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/blocks/combined.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/dummy_gradients.h"
#include "estimator/frameworks/megatron/fp8_rows.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/optimizer_rows.h"
#include "estimator/frameworks/megatron/optimizer_step.h"
#include "estimator/frameworks/megatron/resident_rows.h"
#include "estimator/frameworks/megatron/state_block.h"
#include "estimator/frameworks/megatron/weights.h"
#include "estimator/frameworks/pieces/seen_by_layer.h"

namespace shardplan::megatron {
namespace {

// Megatron-FSDP with a model on the meta device: a module has its tensors while they are copied
// into the buffer of its group, under ZeRO-3 a bucket that goes when the group is done
// (fsdp/src/megatron_fsdp/param_and_grad_buffer.py, _init_each_parameter_group_buffers).
std::int64_t materialized_at_once(const MegatronState& state) {
  const StageTensors& t = state.tensors;
  const std::int64_t layer = t.largest_layer_dense + t.largest_layer_expert;
  const std::int64_t ends = t.dense - t.layers_dense + t.expert - t.layers_expert;
  return (state.shards_parameters() ? std::max(layer, ends) : 0) +
         std::max(t.largest_dense_tensor, t.largest_layer_expert);
}

// Megatron builds a chunk tensor by tensor, then moves its parameters into a contiguous buffer; the
// gradient buffer is made before the old tensors go (param_and_grad_buffer.py).
void add_built_parameters(MegatronState& state) {
  const StageTensors& t = state.tensors;
  if (state.keeps_fp8()) {
    const bool moves = !state.gathers_apart();
    state.add({.component = Component::kParameters,
               .name = "start_up.parameters",
               .elements = moves ? t.largest_chunk - t.largest_chunk_linear : 0,
               .dtype = state.parameter_dtype(),
               .first = Phase::kStartUp,
               .last = Phase::kStartUp,
               .formula = "(N-L)/v: a chunk's bf16 tensors before their buffer takes over"});
    state.add({.component = Component::kParameters,
               .name = "start_up.fp8_weights",
               .elements = moves ? t.largest_chunk_linear : 0,
               .dtype = DType::kFp8,
               .first = Phase::kStartUp,
               .last = Phase::kStartUp,
               .formula = "L/v: a chunk's fp8 weights, row-wise, before theirs does"});
    return;
  }
  const bool by_module = state.shards_gradients() && state.job.profile.init_model_with_meta_device;
  state.add({.component = Component::kParameters,
             .name = "start_up.parameters",
             .elements = by_module                  ? materialized_at_once(state)
                         : state.shards_optimizer() ? t.largest_chunk
                                                    : 0,
             .dtype = state.parameter_dtype(),
             .first = Phase::kStartUp,
             .last = Phase::kStartUp,
             .formula = by_module ? "n: a group of modules and one of them, on its way there"
                                  : "N/v: a chunk's tensors before its contiguous buffers take "
                                    "over"});
}

// Of the layers see fsdp.h. Before the optimizer steps all are given back; behind it the
// first ones are gathered for the next step (finish_grad_sync, start_param_sync), until the norm of
// the parameters, where it is logged, gives them back (core_v0.16.1 training/utils.py,
// calc_params_l2_norm).
void add_gathered(MegatronState& state) {
  const StageTensors& t = state.tensors;
  if (!state.shards_parameters() || state.dense_shard == 1) {
    return;
  }
  state.add({.component = Component::kCommunication,
             .name = "zero.gathered_ends",
             .elements = t.dense - t.layers_dense + t.expert - t.layers_expert,
             .dtype = state.parameter_dtype(),
             .first = Phase::kForward,
             .last = Phase::kReduction,
             .formula = "embedding, head and final norm: gathered for the whole step",
             .stream = AllocationStream::kGather});
  std::int64_t bytes = 0;
  for (const ChunkLayout& chunk : state.stage.chunks) {
    bytes += fsdp_bytes_between_steps(state.job, state.plan, chunk);
  }
  state.add({.component = Component::kCommunication,
             .name = "zero.gathered_for_next_step",
             .elements = bytes / bytes_of(state.parameter_dtype()),
             .dtype = state.parameter_dtype(),
             .first = Phase::kParameterGather,
             .last = state.job.profile.log_params_norm ? Phase::kParameterGather : Phase::kIdle,
             .formula = "the first bucket of every chunk and those that it gathers ahead",
             .stream = AllocationStream::kGather});
}

void add_double_buffers(MegatronState& state) {
  const FsdpBucket buffers = double_buffers(state.job, state.plan, state.stage);
  state.add({.component = Component::kCommunication,
             .name = "zero.parameter_buffers",
             .elements = buffers.parameter_bytes / bytes_of(state.parameter_dtype()),
             .dtype = state.parameter_dtype(),
             .first = Phase::kStartUp,
             .formula = "2n: layers are gathered into one of two buffers, which stay",
             .stream = AllocationStream::kGather});
  const DType dtype = fsdp_gradient_dtype(state.plan);
  state.add(
      {.component = Component::kCommunication,
       .name = "zero.gradient_buffers",
       .elements = buffers.gradient_bytes / bytes_of(dtype),
       .dtype = dtype,
       .formula = "2n: gradients of layers before their reduce-scatter, in buffers that stay"});
}

// `all`: the model's, without adapters.
void add_frozen_parameters(MegatronState& state, const StageTensors& all) {
  state.add({.component = Component::kParameters,
             .name = "parameters.frozen",
             .elements = trains_adapters(state.job) ? all.dense + all.expert : 0,
             .dtype = state.parameter_dtype(),
             .first = Phase::kStartUp,
             .formula = "the model's own parameters, in no buffer"});
}

void add_dummy_gradients(MegatronState& state) {
  std::int64_t elements = 0;
  for (const std::int64_t of_shape : dummy_gradients(state.job, state.plan, state.stage)) {
    elements += of_shape;
  }
  state.add({.component = Component::kWorkspace,
             .name = "dummy_weight_gradients",
             .elements = elements,
             .dtype = state.parameter_dtype(),
             .formula = "sum of distinct weight shapes of the stage, cached by TE",
             .made_by = MadeBy::kFirstGradients});
}

void add_held_exchange(MegatronState& state) {
  const bool has_experts = std::ranges::any_of(
      std::array{BlockKind::kMoeLayer, BlockKind::kOtherLayer, BlockKind::kFurtherLayer},
      [&](BlockKind kind) {
        return count_blocks(state.stage, kind) > 0 && is_mixture(state.job, kind);
      });
  state.add({.component = Component::kCommunication,
             .name = "held_exchange",
             .elements = has_experts ? held_exchange(state.job, state.plan) : 0,
             .dtype = state.parameter_dtype(),
             .formula = "topk*h*u: of the last exchange, held by the schedule of two microbatches; "
                        "seen between the steps of a2a-delay, data/measured/"
                        "exchanges_two_gpus_h100.jsonl",
             .made_by = MadeBy::kFirstGradients});
}

bool has_whole_moments(const MegatronState& state) {
  const FrameworkProfile& profile = state.job.profile;
  return profile.fsdp_whole_moments && profile.fused_optimizer && state.shards_gradients() &&
         state.job.optimizer == OptimizerKind::kAdamW;
}

// The shape of a parameter of Megatron-FSDP is that of all ranks of data and tensor parallelism; an
// expert belongs to one rank of expert parallelism (param_and_grad_buffer.py, make_fsdp_dtensor).
LocalParameters whole_parameters(const Job& job, const Plan& plan, const StageLayout& stage) {
  Job whole_job = job;
  Plan whole = plan;
  whole_job.profile.vocab_multiple *= plan.tp;
  whole.dp *= plan.tp;  // so that experts divide over as many ranks; 0 stays what others leave
  whole.tp = whole.etp = 1;
  const StageTensors tensors = stage_tensors(whole_job, whole, stage, buffers(whole_job, whole));
  return {.dense = tensors.dense, .expert = tensors.expert};
}

// `tensors`: what is updated, all of the model's or what is trained of it.
std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& all, const StageTensors& tensors) {
  MegatronState state{.job = job,
                      .plan = plan,
                      .stage = stage,
                      .tensors = tensors,
                      .dense_shard = dense_shard_size(job, plan),
                      .expert_shard = expert_state_shards(job, plan)};
  constexpr std::size_t kManyRows = 32;  // room for the usual number
  state.rows.rows.reserve(kManyRows);
  if (state.has_muon()) {
    state.muon = fullest_muon_share(job, plan, muon_tensors(job, plan, held_blocks(job, stage)));
  }
  const LocalParameters whole =
      has_whole_moments(state) ? whole_parameters(job, plan, stage) : LocalParameters{};
  add_frozen_parameters(state, all);
  add_built_parameters(state);
  const bool keeps_fp8 = state.keeps_fp8();
  add_megatron_group(state, {.names = kDenseStateNames,
                             .elements = tensors.dense,
                             .fp8 = keeps_fp8 ? tensors.dense_linear : 0,
                             .padding = tensors.dense_padding,
                             .fp8_padding = tensors.linear_padding,
                             .shard = state.dense_shard,
                             .whole = whole.dense,
                             .updated = state.muon.dense,
                             .second_moment = state.muon.dense_second_moment});
  add_megatron_group(state, {.names = kExpertStateNames,
                             .elements = tensors.expert,
                             .fp8 = keeps_fp8 ? tensors.expert : 0,
                             .padding = keeps_fp8 ? 0 : tensors.expert_padding,
                             .fp8_padding = keeps_fp8 ? tensors.expert_padding : 0,
                             .shard = state.expert_shard,
                             .whole = whole.expert,
                             .updated = state.muon.expert});
  if (plan.precision == Precision::kFp8) {
    for (const StateRow& row : megatron_fp8_rows(job, plan, stage, tensors)) { state.add(row); }
  }
  add_gathered(state);
  add_double_buffers(state);
  add_optimizer_step(state);
  add_muon_step(state);
  add_dummy_gradients(state);
  add_held_exchange(state);
  for (const StateRow& row : resident_rows(job, plan, stage, tensors)) { state.add(row); }
  return std::move(state.rows.rows);
}

}  // namespace

bool is_precision_aware(const Plan& plan) {
  return plan.master_dtype != DType::kFp32 || plan.exp_avg_dtype != DType::kFp32 ||
         plan.exp_avg_sq_dtype != DType::kFp32;
}

bool has_plain_optimizer(const Job& job, const Plan& plan) {
  return plan.zero <= 1 && !is_precision_aware(plan) && plan.offload.optimizer == 0.0 &&
         !keeps_fp8_weights(job, plan);
}

// Where products add weight gradients that another stream makes, all of them may wait there.
StageState state_of_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& all, std::optional<std::int64_t> /*data_rank*/) {
  StageState state;
  const bool is_part = trains_adapters(job);
  const StageTensors trained =
      is_part ? trained_stage(job, plan, stage, buffers(job, plan)) : StageTensors{};
  const StageTensors& tensors = is_part ? trained : all;
  state.rows = state_rows(job, plan, stage, all, tensors);
  if (accumulates_beside(job, plan) && !fuses_weight_gradients(job, plan)) {
    state.bytes.side_streams =
        (tensors.dense + tensors.expert) * bytes_of(activation_dtype(plan.precision));
  }
  return state;
}

}  // namespace shardplan::megatron
