#include "estimator/frameworks/nanotron/blocks.h"

#include <stdexcept>

#include "estimator/frameworks/nanotron/block.h"
#include "estimator/frameworks/nanotron/head.h"
#include "estimator/frameworks/nanotron/layer.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan::nanotron {
namespace {

void add_embedding(NanotronBlock& b) {
  RowList& rows = b.rows;
  const bool is_summed = b.job.model.tied_embeddings && head_stage(b.job, b.plan) == 0;
  rows.keep("token_ids", b.s.tokens, DType::kInt64,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardInput},
            "T");
  rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*u");
  rows.use("full_output", b.s.gathers_sequence ? b.full_sequence() : 0, b.s.dtype,
           Step::kForwardOutput, Step::kForwardOutput, "h*T: before the reduce-scatter");
  rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput, Step::kBackwardInput,
           "h*u");
  rows.use("full_gradient", b.s.gathers_sequence ? b.full_sequence() : 0, b.s.dtype,
           Step::kBackwardInput, Step::kBackwardInput, "h*T: gathered");
  keep_weight_gradient(rows, "weight_gradient", b.s.local_vocab * b.s.hidden, b.s.dtype,
                       Step::kBackwardInput);
  rows.use("summed_weight_gradient", is_summed ? b.s.local_vocab * b.s.hidden : 0, b.s.dtype,
           Step::kBackwardInput, Step::kBackwardInput,
           "V*h/t: with the head's, before either is freed");
}

void add_block(NanotronBlock& b, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding: return add_embedding(b);
    case BlockKind::kDenseLayer: return add_layer(b);
    case BlockKind::kHead: return add_head(b);
    case BlockKind::kLogits: return add_logits(b);
    case BlockKind::kCast: return add_cast(b);
    case BlockKind::kLoss: return add_loss(b);
    case BlockKind::kSentOutput: return;
    case BlockKind::kMoeLayer:
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer:
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kMtp: break;
  }
  throw std::logic_error("block_rows: a layer that has no rows");
}

}  // namespace

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind) {
  RowList rows(1);
  NanotronBlock block{.job = job, .plan = plan, .s = block_shape(job, plan), .rows = rows};
  add_block(block, kind);
  return rows.rows;
}

bool has_own_block(const Job& /*job*/, BlockKind kind) {
  return kind == BlockKind::kLogits || kind == BlockKind::kCast || kind == BlockKind::kLoss;
}

}  // namespace shardplan::nanotron
