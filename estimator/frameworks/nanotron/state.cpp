// What a rank of nanotron holds besides activations. Sources, read in huggingface/nanotron at
// 2411b022 and v0.5: optim/gradient_accumulator.py (FP32GradientAccumulator), optim/zero.py
// (ZeroDistributedOptimizer._all_gather_params), distributed.py (all_gather_coalesced), trainer.py
// (_init_model, training_step), models/llama.py (RotaryEmbedding); PyTorch
// torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (allgather of lists copies into one flat tensor)
// and reducer.cpp.
// Letters: N parameters of the rank, S the ranks that share their optimizer state.
#include "estimator/frameworks/nanotron/state.h"

#include <utility>

#include "estimator/frameworks/nanotron/blocks.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan::nanotron {
namespace {

void add_states(StateRowList& state, const Plan& plan, std::int64_t n, std::int64_t share,
                DType dtype) {
  state.add({.component = Component::kParameters,
             .name = "parameters",
             .elements = n,
             .dtype = dtype,
             .first = Phase::kStartUp,
             .formula = "N"});
  state.add({.component = Component::kGradients,
             .name = "gradients.fp32_buffer",
             .elements = n,
             .dtype = DType::kFp32,
             .first = Phase::kStartUp,
             .formula = "N, also under ZeRO-1: one contiguous buffer (build_grad_buffers)"});
  state.add({.component = Component::kOptimizer,
             .name = "optimizer.master",
             .elements = share,
             .dtype = DType::kFp32,
             .first = Phase::kStartUp,
             .formula = "N/S: big_flat_buffer of the accumulator"});
  for (const auto& [name, moment] : {std::pair{"optimizer.exp_avg", plan.exp_avg_dtype},
                                     std::pair{"optimizer.exp_avg_sq", plan.exp_avg_sq_dtype}}) {
    state.add({.component = Component::kOptimizer,
               .name = name,
               .elements = share,
               .dtype = moment,
               .made_by_first_step = true,
               .formula = "N/S: torch.optim.AdamW makes it in its first step"});
  }
}

// Gradients are all-reduced in their buffer (trainer.py training_step: reduce_scatter=False), so
// that only the gather of updated parameters needs copies: of the rank's own share and of every
// rank's (all_gather_coalesced), and the process group's.
void add_parameter_gather(StateRowList& state, std::int64_t n, std::int64_t ranks, DType dtype) {
  StateRow copy{.component = Component::kCommunication,
                .name = "parameter_gather.own_share",
                .elements = div_ceil(n, ranks),
                .dtype = dtype,
                .first = Phase::kParameterGather,
                .last = Phase::kParameterGather,
                .formula = "N/S"};
  state.add(copy);
  copy.name = "parameter_gather.shares";
  copy.copies = ranks;
  copy.formula = "N: a tensor for every rank";
  state.add(copy);
  copy.name = "parameter_gather.flat_parameters";
  copy.elements = n;
  copy.copies = 1;
  copy.formula = "N: the process group's copy of the list";
  state.add(copy);
}

}  // namespace

std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors) {
  StateRowList state;
  const DType dtype = activation_dtype(plan.precision);
  const std::int64_t n = tensors.dense;
  const std::int64_t ranks = dense_shard_size(job, plan);
  const std::int64_t share = plan.zero == 1 ? div_ceil(n, ranks) : n;
  add_states(state, plan, n, share, dtype);
  const bool exchanges = data_parallel_size(job, plan) > 1;
  if (exchanges && plan.zero == 1) {
    add_parameter_gather(state, n, ranks, dtype);
  }
  state.add({.component = Component::kGradients,
             .name = "gradients.ddp_buckets",
             .elements = exchanges && plan.zero == 0 ? n : 0,
             .dtype = dtype,
             .first = Phase::kStartUp,
             .formula = "N: buckets of DistributedDataParallel, beside .grad; none with ZeRO-1"});
  state.add({.component = Component::kTemporaries,
             .name = "optimizer.step_temporary",
             .elements = job.profile.fused_optimizer ? 0 : share,
             .dtype = DType::kFp32,
             .first = Phase::kOptimizer,
             .last = Phase::kOptimizer,
             .formula = "N/S: one fp32 list of foreach AdamW"});
  const bool multiplies = count_blocks(stage, BlockKind::kDenseLayer) > 0 || stage.ends.has_head;
  state.add({.component = Component::kWorkspace,
             .name = "cublas_workspace",
             .elements = multiplies ? job.profile.fixed_workspace_bytes : 0,
             .dtype = DType::kBool,
             .copies = 2,
             .formula = "one of the forward's thread, one of autograd's",
             .made_by = MadeBy::kFirstProducts});
  const std::int64_t positions =
      count_blocks(stage, BlockKind::kDenseLayer) * job.sequence_length * job.model.head_dim;
  state.add({.component = Component::kWorkspace,
             .name = "rotary_tables",
             .elements = positions,
             .dtype = DType::kBf16,
             .formula = "s*d a layer: cosine and sine, every layer has its own"});
  state.add({.component = Component::kWorkspace,
             .name = "interleaved_rotary_tables",
             .elements = job.profile.interleaved_rotary ? positions : 0,
             .dtype = DType::kFp32,
             .formula = "s*d a layer: complex numbers of the module beside flash-attn's"});
  const BlockShape shape = block_shape(job, plan);
  state.add({.component = Component::kCommunication,
             .name = "gather_buffers",
             .elements = multiplies && shape.gathers_sequence && job.profile.keeps_gather_buffers
                             ? shape.hidden * shape.tokens
                             : 0,
             .dtype = shape.dtype,
             .copies = job.profile.recompute_allgather ? 2 : 1,
             .formula = "h*T: of inputs that are gathered again, and of output gradients"});
  return std::move(state.rows);
}

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  const BlockShape shape = block_shape(job, plan);
  const bool sends = ends.sending_chunks > 0 && (ends.has_head || ends.has_cast);
  SequenceRows rows = {
      {{.component = Component::kCommunication,
        .name = "pipeline.last_sent_logits",
        .elements = sends ? shape.local_vocab * shape.tokens : 0,
        .dtype = ends.has_cast ? DType::kFp32 : shape.dtype,
        .first = Phase::kForward,
        .last = Phase::kBackward,
        .formula =
            "V*T/t: of the last warm-up microbatch, held by send_activation, the variable "
            "of the engine's loop (parallel/pipeline_parallel/engine.py, train_batch_iter)"}}};
  return sized(rows);
}

}  // namespace shardplan::nanotron
