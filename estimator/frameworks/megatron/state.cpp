// Sources: memory-model of Megatron-LM (core/distributed/param_and_grad_buffer.py, core/optimizer/
// distrib_optimizer.py, core/distributed/fsdp), Transformer Engine (pytorch/module/base.py).
// Letters:
//   N dense and X expert parameters of the rank, S and S_x the ranks that share their optimizer
//   state, n the parameters of a module, L the weights of linear layers.
#include "estimator/frameworks/megatron/state.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/fp8_rows.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/resident_rows.h"
#include "estimator/frameworks/megatron/weights.h"

namespace shardplan {
namespace {

struct MegatronState {
  const Job& job;
  const Plan& plan;
  const StageLayout& stage;
  const StageTensors& tensors;
  std::int64_t dense_shard = 1;   // S
  std::int64_t expert_shard = 1;  // S_x
  MuonShare muon = {};            // where it is the optimizer
  StateRowList rows = {};

  bool shards_optimizer() const { return plan.zero >= 1; }
  bool shards_gradients() const { return plan.zero >= 2; }
  bool shards_parameters() const { return plan.zero >= 3; }
  bool has_muon() const { return uses_muon(job); }
  bool keeps_fp8() const { return keeps_fp8_weights(job, plan); }
  bool gathers_apart() const { return gathers_through_gradients(job, plan); }
  DType parameter_dtype() const { return activation_dtype(plan.precision); }
  DType grad_dtype() const {
    return plan.precision == Precision::kFp32 ? DType::kFp32 : plan.grad_dtype;
  }

  void add(const StateRow& row) { rows.add(row); }
};

struct StateNames {
  std::string_view parameters;
  std::string_view gradients;
  std::string_view master;
  std::string_view exp_avg;
  std::string_view exp_avg_sq;
  std::string_view parameters_padding;
  std::string_view gradients_padding;
  std::string_view optimizer_padding;
};
constexpr StateNames kDenseNames = {"parameters.dense",           "gradients.dense",
                                    "optimizer.dense.master",     "optimizer.dense.exp_avg",
                                    "optimizer.dense.exp_avg_sq", "parameters.dense.padding",
                                    "gradients.dense.padding",    "optimizer.dense.padding"};
constexpr StateNames kExpertNames = {"parameters.expert",           "gradients.expert",
                                     "optimizer.expert.master",     "optimizer.expert.exp_avg",
                                     "optimizer.expert.exp_avg_sq", "parameters.expert.padding",
                                     "gradients.expert.padding",    "optimizer.expert.padding"};

// One of the two groups of parameters that are sharded over different ranks.
struct Group {
  StateNames names;
  std::int64_t elements = 0;
  std::int64_t fp8 = 0;  // of these kept in fp8 alone
  std::int64_t padding = 0;
  std::int64_t fp8_padding = 0;
  std::int64_t shard = 1;
  std::int64_t whole = 0;    // elements before tensor parallelism divides them; 0: not asked for
  std::int64_t updated = 0;  // by this rank
  std::int64_t second_moment = 0;  // of these, where AdamW updates them
};

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
void add_muon(MegatronState& state, const Group& group) {
  if (state.plan.precision != Precision::kFp32) {
    add_optimizer_row(state, group.names.master, group.updated, DType::kFp32, Phase::kBuilt,
                      "N, with dist_muon of the fullest rank: main parameters");
  }
  add_optimizer_row(state, group.names.exp_avg, group.updated, DType::kFp32, Phase::kForward,
                    "of these the moment of matrices and AdamW's first");
  add_optimizer_row(state, group.names.exp_avg_sq, group.second_moment, DType::kFp32,
                    Phase::kForward, "of embedding, head and vectors, which AdamW updates");
}

void add_optimizer(MegatronState& state, const Group& group) {
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

void add_group(MegatronState& state, const Group& group) {
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

// Temporaries of the optimizer step.
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
  const bool has_experts = count_blocks(state.stage, BlockKind::kMoeLayer) > 0;
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

}  // namespace

std::vector<std::int64_t> dummy_gradients(const Job& job, const Plan& plan,
                                          const StageLayout& stage) {
  std::vector<std::int64_t> elements;
  if (!fuses_weight_gradients(job, plan) || !job.profile.dummy_weight_gradients) {
    return elements;
  }
  std::vector<WeightShape> seen;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    if (count_blocks(stage, kind) == 0) {
      continue;
    }
    for (WeightShape shape : weight_shapes(job, plan, kind)) {
      shape.count = 1;
      if (std::ranges::find(seen, shape) == seen.end()) {
        seen.push_back(shape);
        elements.push_back(shape.rows * shape.columns);
      }
    }
  }
  return elements;
}

// The shape of a parameter of Megatron-FSDP is that of all ranks of data and tensor parallelism; an
// expert belongs to one rank of expert parallelism (param_and_grad_buffer.py, make_fsdp_dtensor).
LocalParameters whole_parameters(const Job& job, const Plan& plan, const StageLayout& stage) {
  Job whole_job = job;
  Plan whole = plan;
  whole_job.profile.vocab_multiple *= plan.tp;
  whole.dp *= plan.tp;  // so that experts divide over as many ranks; 0 stays what others leave
  whole.tp = whole.etp = 1;
  const StageTensors tensors =
      stage_tensors(whole_job, whole, stage, megatron_buffers(whole_job, whole));
  return {.dense = tensors.dense, .expert = tensors.expert};
}

bool is_precision_aware(const Plan& plan) {
  return plan.master_dtype != DType::kFp32 || plan.exp_avg_dtype != DType::kFp32 ||
         plan.exp_avg_sq_dtype != DType::kFp32;
}

bool has_plain_optimizer(const Job& job, const Plan& plan) {
  return plan.zero <= 1 && !is_precision_aware(plan) && plan.offload.optimizer == 0.0 &&
         !keeps_fp8_weights(job, plan);
}

namespace {

std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors) {
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
  add_built_parameters(state);
  const bool keeps_fp8 = state.keeps_fp8();
  add_group(state, {.names = kDenseNames,
                    .elements = tensors.dense,
                    .fp8 = keeps_fp8 ? tensors.dense_linear : 0,
                    .padding = tensors.dense_padding,
                    .fp8_padding = tensors.linear_padding,
                    .shard = state.dense_shard,
                    .whole = whole.dense,
                    .updated = state.muon.dense,
                    .second_moment = state.muon.dense_second_moment});
  add_group(state, {.names = kExpertNames,
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
  add_optimizer_step(state);
  add_muon_step(state);
  add_dummy_gradients(state);
  add_held_exchange(state);
  for (const StateRow& row : resident_rows(job, plan, stage, tensors)) { state.add(row); }
  return std::move(state.rows.rows);
}

}  // namespace

// Where products add weight gradients that another stream makes, all of them may wait there.
StageState megatron_state(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& tensors, std::optional<std::int64_t> /*data_rank*/) {
  StageState state;
  state.rows = state_rows(job, plan, stage, tensors);
  if (accumulates_beside(job, plan) && !fuses_weight_gradients(job, plan)) {
    state.bytes.side_streams =
        (tensors.dense + tensors.expert) * bytes_of(activation_dtype(plan.precision));
  }
  return state;
}

std::vector<std::int64_t> dummy_gradient_bytes(const Job& job, const Plan& plan,
                                               const StageLayout& stage) {
  std::vector<std::int64_t> bytes = dummy_gradients(job, plan, stage);
  for (std::int64_t& of_shape : bytes) { of_shape *= bytes_of(activation_dtype(plan.precision)); }
  return bytes;
}

}  // namespace shardplan
