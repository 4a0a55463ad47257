// Two microbatches' layers side by side (Megatron-LM core_v0.16.1 core/pipeline_parallel/
// combined_1f1b.py, core/models/common/model_chunk_schedule_plan.py): while a layer runs backward,
// another microbatch's layer runs forward, in turn: attention forward, experts backward, experts
// forward, attention backward. As many microbatches are in flight as without it.
#include "estimator/frameworks/megatron/blocks/combined.h"

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/dispatch.h"

namespace shardplan::megatron {
namespace {

// Kept for backward by the steps of a forward up to `last`.
std::int64_t kept_bytes(const std::vector<BlockRow>& rows, Step last) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : rows) { bytes += row.is_kept() && row.born <= last ? row.bytes : 0; }
  return bytes;
}

// Copies by expert of this rank's tokens; 0 where dispatchers make none.
std::int64_t permuted_elements(const MegatronBlock& block) {
  return block.job.profile.moe_dispatcher == MoeDispatcher::kAllToAll
             ? block.routed_width() * dispatch_of(block).local
             : 0;
}

}  // namespace

void add_other_microbatch(MegatronBlock& block) {
  if (!block.job.profile.overlap_moe_expert_parallel_comm) {
    return;
  }
  RowList& rows = block.rows;
  const std::int64_t attention = kept_bytes(rows.rows, Step::kForwardRows);
  const std::int64_t layer = kept_bytes(rows.rows, kLastForward);
  const std::int64_t permuted = block.is_moe ? permuted_elements(block) : 0;
  rows.use("other.attention", attention, DType::kFp8, Step::kBackwardCombine,
           Step::kBackwardDispatch, "kept by the attention that runs forward beside the experts");
  rows.use("other.permuted_tokens", permuted, block.shape.dtype, Step::kBackwardCombine,
           Step::kBackwardDispatch, "topk*h*u: of that microbatch, on their way");
  rows.make_once("other.held_exchange", permuted, block.shape.dtype, Step::kBackwardDispatch,
                 "a row of the state");
  rows.use("other.layer", layer, DType::kFp8, Step::kBackwardFfnNorm, kLastBackward,
           "kept by the layer that runs forward beside this one");
}

std::int64_t held_exchange(const Job& job, const Plan& plan) {
  if (!job.profile.overlap_moe_expert_parallel_comm || !job.model.has_moe_layers()) {
    return 0;
  }
  RowList rows(1);
  return permuted_elements(
      {.job = job, .plan = plan, .shape = block_shape(job, plan), .is_moe = true, .rows = rows});
}

}  // namespace shardplan::megatron
