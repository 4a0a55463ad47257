#include "estimator/frameworks/torchtitan/blocks/embedding.h"

#include <utility>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/fsdp_rows.h"
#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"

namespace shardplan::torchtitan {
namespace {

// A shared table's gradient is the head's, to which the embedding's is added.
void add_embedding_gradient(TitanBlock& block) {
  BlockRow row = titan_embedding_gradient(block);
  if (!block.job.model.tied_embeddings) {
    block.rows.rows.push_back(std::move(row));
    return;
  }
  block.rows.use_as(Component::kGradients, "gradients.added", row.elements, row.dtype, row.born,
                    Step::kBackwardInput, "n/S (n on one GPU): until it is added to the head's");
}

}  // namespace

void add_titan_embedding(TitanBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t own = block.parameters.embedding;
  const DType residual = block.is_autocast() ? DType::kFp32 : s.dtype;
  if (block.is_pipelined()) {
    rows.keep("output", block.sequence(), residual,
              {.born = Step::kForwardOutput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardOutput},
              "h*u: input of the first layer");
  } else {
    rows.use("output", block.sequence(), residual, Step::kForwardOutput, Step::kForwardOutput,
             "h*u");
  }
  rows.use("output_gradient", block.sequence(), residual, Step::kBackwardOutput,
           Step::kBackwardLogits, "h*u");
  if (block.is_autocast()) {  // the dense gradient is the parameter's own
    add_embedding_gradient(block);
    return;
  }
  // A pipeline accumulates the whole table's gradient and picks its rows at the end.
  const bool picks_rows = block.plan.tp > 1 && block.fsdp.reduces_each_backward;
  rows.use("table_gradient", padded_vocab(block.job, block.plan) * s.hidden, s.dtype,
           Step::kBackwardLogits, picks_rows ? Step::kBackwardNorm : Step::kBackwardInput,
           "V*h: dense, of the whole table");
  rows.use("table_gradient_rows", picks_rows ? own : 0, s.dtype, Step::kBackwardNorm,
           Step::kBackwardInput, "V/t*h: this rank's rows");
  const bool has_root = block.fsdp.root_holds_ends;
  const FsdpSizes sizes{.own = own + (has_root ? block.parameters.head : 0),
                        .next = 0,
                        .previous = block.parameters.layer,
                        .before = 0,
                        .reshards_forward = block.fsdp.reshards_forward && !has_root};
  add_fsdp_gathered(block, sizes);
  add_fsdp_reduction(block, sizes);
  if (!block.fsdp.reduces_each_backward) {
    add_titan_pipelined(block, own, block.plan.tp > 1 ? GroupEnd::kRowsOfTable : GroupEnd::kTable);
  }
  add_embedding_gradient(block);
  add_titan_reductions(block, BlockKind::kEmbedding);
}

}  // namespace shardplan::torchtitan
