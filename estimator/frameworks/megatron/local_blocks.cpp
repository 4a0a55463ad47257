// The table that puts the blocks of Megatron-core's local spec together.
#include "estimator/frameworks/megatron/local_blocks.h"

#include <utility>

#include "estimator/frameworks/megatron/blocks/local_attention.h"
#include "estimator/frameworks/megatron/blocks/local_ends.h"
#include "estimator/frameworks/megatron/blocks/local_layer.h"
#include "estimator/frameworks/megatron/blocks/local_moe.h"

namespace shardplan::megatron {

std::vector<BlockRow> local_rows(const Job& job, const Plan& plan, BlockKind kind) {
  RowList rows(kAllocatorRounding);
  MegatronBlock block{.job = job,
                      .plan = plan,
                      .shape = block_shape(job, plan),
                      .is_moe = kind == BlockKind::kMoeLayer,
                      .rows = rows};
  switch (kind) {
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kMtp: break;
    case BlockKind::kEmbedding:
      add_local_embedding_forward(block);
      add_local_embedding_backward(block);
      break;
    case BlockKind::kHead: add_local_head(block); break;
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss: break;  // nanotron's
    case BlockKind::kSentOutput:
      rows.keep("sent_output", block.shape.hidden * block.shape.sharded_tokens, block.shape.dtype,
                {.born = Step::kForwardOutput,
                 .last_forward_use = Step::kForwardOutput,
                 .dies = Step::kBackwardOutput},
                "h*u: deallocate_pipeline_outputs is off");
      break;
    case BlockKind::kDenseLayer:
    case BlockKind::kMoeLayer:
      add_local_layer_ends(block);
      add_local_attention(block);
      block.is_moe ? add_local_moe(block) : add_local_dense_ffn(block);
      break;
  }
  return std::move(rows.rows);
}

}  // namespace shardplan::megatron
