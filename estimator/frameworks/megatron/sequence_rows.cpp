#include "estimator/frameworks/megatron/sequence_rows.h"

#include <algorithm>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {
namespace {

// core/tensor_parallel/layers.py gathers the input of column-parallel products into one buffer that
// is never freed; with Transformer Engine only the head is such a product, and not a frozen one.
bool has_gather_buffer(const Job& job, const BlockShape& shape, const StageEnds& ends) {
  const MemoryModel model = job.profile.memory_model;
  const bool trains_head = !trains_adapters(job) || job.adapters.trains_head;
  return shape.gathers_sequence && (model == MemoryModel::kMegatronLocal ||
                                    (model == MemoryModel::kMegatron &&
                                     ((ends.has_head && trains_head) || has_local_layers(job))));
}

// What the buffer holds at most: a product's input, the tokens of all ranks that share the experts
// (core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher), or what core's own
// attention adds nothing of to its scores (core/transformer/dot_product_attention.py).
std::int64_t gather_buffer_elements(const Job& job, const Plan& plan, const BlockShape& shape,
                                    const StageEnds& ends) {
  const bool gathers_experts = job.profile.memory_model == MemoryModel::kMegatron &&
                               job.model.moe.num_experts > 0 && plan.ep * plan.etp > 1 &&
                               job.profile.moe_dispatcher == MoeDispatcher::kAllGather;
  const std::int64_t tokens =
      std::max(has_gather_buffer(job, shape, ends) ? shape.tokens : 0,
               gathers_experts ? shape.sharded_tokens * plan.ep * plan.etp : 0);
  return std::max(
      shape.hidden * tokens,
      has_local_layers(job) ? shape.query_heads * shape.tokens * job.sequence_length : 0);
}

// training/utils.py, get_batch_on_this_tp_rank: stages at the ends read batches; core/utils.py,
// get_batch_on_this_cp_rank cuts the queries' dimension.
bool has_attention_mask(const Job& job, const StageEnds& ends) {
  return job.profile.attention_mask && (ends.has_embedding || ends.has_head);
}

std::int64_t mask_bytes(const Job& job, const Plan& plan) {
  return plan.micro_batch * div_ceil(job.sequence_length, plan.cp) * job.sequence_length;
}

// What Megatron-LM's schedules hold of other microbatches than the one at work.
std::array<StateRow, 5> pipeline_rows(const Job& job, const Plan& plan, const StageEnds& ends,
                                      const BlockShape& shape) {
  const bool is_local = job.profile.memory_model == MemoryModel::kMegatronLocal;
  const std::int64_t hidden_state = shape.hidden * shape.sharded_tokens;
  const bool interleaves = plan.pp > 1 && plan.vpp > 1;
  // A backward runs between a forward and the sending of its output, which the loss has not.
  const bool sends_loss = ends.has_head && !job.profile.overlap_p2p_comm;
  const bool loops_1f1b = plan.pp > 1 && plan.vpp == 1;
  const bool receives = loops_1f1b && ends.receiving_chunks > 0;
  const bool sends = loops_1f1b && !ends.has_head;
  const MadeBy received = is_local && plan.vpp == 1 ? MadeBy::kPipelineLoop : MadeBy::kPhase;
  return {
      {{.component = Component::kCommunication,
        .name = "pipeline.receive_buffers",
        .elements = interleaves ? hidden_state : 0,
        .dtype = shape.dtype,
        .copies = sends_loss ? 1 : 2,
        .first = Phase::kForward,
        .last = Phase::kBackward,
        .formula = "h*u: input gradient of the backward before, held by the schedule's loop, and "
                   "the forward's output that is not sent yet or with overlap_p2p_comm the next "
                   "input"},
       {.component = Component::kCommunication,
        .name = "pipeline.last_input_gradient",
        .elements = receives ? hidden_state : 0,
        .dtype = shape.dtype,
        .first = Phase::kForward,
        .last = Phase::kBackward,
        .formula = "h*u: input_tensor_grad of the microbatch before, held by the schedule's loop "
                   "until the next one replaces it",
        .made_by = received},
       {.component = Component::kCommunication,
        .name = "pipeline.last_input",
        .elements = receives ? hidden_state : 0,
        .dtype = shape.dtype,
        .first = Phase::kForward,
        .last = Phase::kForward,
        .formula = "h*u: input of the microbatch before; the loop's output_tensor holds its graph",
        .made_by = received},
       {.component = Component::kCommunication,
        .name = "pipeline.last_output_gradient",
        .elements = sends ? hidden_state : 0,
        .dtype = shape.dtype,
        .first = Phase::kForward,
        .last = Phase::kForward,
        .formula = "h*u: output_tensor_grad of the microbatch before, held by the loop"},
       {.component = Component::kCommunication,
        .name = "pipeline.last_inputs",
        .elements = hidden_state,
        .dtype = shape.dtype,
        .copies = 2 * ends.receiving_chunks,
        .first = Phase::kReduction,
        .last = Phase::kIdle,
        .formula = "h*u: each chunk's last input and its gradient, held by set_input_tensor until "
                   "the next step",
        .made_by = received}}};
}

// The first microbatches of a step leave the input of the output layer and the gradient of its
// output in two lists, which are emptied behind the last backward pass: core/tensor_parallel/
// layers.py, ColumnParallelLinear; core/utils.py, drain_embedding_wgrad_compute, which gathers two
// inputs at a time, into buffers of their own. The input is not detached: its graph is used up, but
// holds the leaf, what the stage received, with its gradient (torch/csrc/autograd/functions/
// accumulate_grad.h).
std::array<StateRow, 2> deferred_rows(const Job& job, const Plan& plan, const StageEnds& ends,
                                      const BlockShape& shape) {
  const std::int64_t limit = ends.has_head ? job.profile.deferred_embedding_wgrads : 0;
  const std::int64_t microbatches = limit > 0 ? num_microbatches(job, plan) : 1;
  return {{{.component = Component::kActivations,
            .name = "head.deferred_wgrad_inputs",
            .elements = shape.local_vocab * shape.tokens + 3 * shape.hidden * shape.sharded_tokens,
            .dtype = shape.dtype,
            .copies = std::min(limit, microbatches - 1),
            .last = Phase::kBackward,
            .formula = "V*T/t+3*h*u: of each microbatch before the gradient of its logits, the "
                       "head's input, the stage's input and its gradient, until the step's end"},
           {.component = Component::kCommunication,
            .name = "head.deferred_gather_buffers",
            .elements = shape.gathers_sequence ? shape.hidden * shape.tokens : 0,
            .dtype = shape.dtype,
            .copies = std::min({limit, microbatches, std::int64_t{2}}),
            .formula = "h*T: global memory buffers of the gathered inputs, never freed"}}};
}

}  // namespace

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  const BlockShape shape = block_shape(job, plan);
  const bool is_local = job.profile.memory_model == MemoryModel::kMegatronLocal;
  const auto [ahead, last_input_gradient, last_input, last_output_gradient, last_inputs] =
      pipeline_rows(job, plan, ends, shape);
  const auto [deferred, deferred_buffers] = deferred_rows(job, plan, ends, shape);
  SequenceRows rows = {
      {{.component = Component::kCommunication,
        .name = "sequence_gather_buffer",
        .elements = gather_buffer_elements(job, plan, shape, ends),
        .dtype = shape.dtype,
        .formula = "h*T, or a*s*T/t of core's own attention: global memory buffer, never freed",
        .made_by = is_local ? MadeBy::kFirstGather : MadeBy::kPhase},
       ahead,
       last_input_gradient,
       last_input,
       last_output_gradient,
       last_inputs,
       {.component = Component::kWorkspace,
        .name = "rotary_table",
        .elements = turns_positions(job.model)
                        ? div_ceil(job.sequence_length, plan.cp) * job.model.rotary_dim()
                        : 0,
        .dtype = DType::kFp32,
        .formula = "s/c*d: this rank's angles of the rotary embedding, fp32, cached"},
       {.component = Component::kActivations,
        .name = "attention_mask",
        .elements = has_attention_mask(job, ends) ? mask_bytes(job, plan) : 0,
        .dtype = DType::kBool,
        .first = Phase::kForward,
        .last = Phase::kForward,
        .formula = "b*s*s/c: of the data loader's batch, held by the forward step that runs"},
       deferred,
       deferred_buffers}};
  return sized(rows);
}

SeenBySequences seen_by_sequences(const Job& job, const Plan& plan, std::int64_t num_microbatches) {
  const std::int64_t limit = job.profile.deferred_embedding_wgrads;
  const std::int64_t deferred = limit > 0 ? std::min(limit + 1, num_microbatches) : 0;
  return {.pipeline = {plan.pp > 1 ? 1 : 0, 2 * deferred + (plan.vpp > 1 ? 1 : 0)},
          .experts = job.profile.moe_dispatcher == MoeDispatcher::kAllGather,
          .cp_method = false};
}

}  // namespace shardplan::megatron
