// nanotron, whose model is plain PyTorch modules under autograd: blocks in nanotron_rows.cpp, state
// in nanotron_state.cpp.
#pragma once

#include <stdexcept>
#include <string_view>
#include <vector>

#include "estimator/allocator_replay.h"
#include "estimator/block_rows.h"
#include "estimator/stage_layout.h"
#include "estimator/stage_tensors.h"
#include "estimator/state_row.h"

namespace shardplan {

std::vector<BlockRow> nanotron_rows(const Job& job, const Plan& plan, BlockKind kind);

std::vector<StateRow> nanotron_state_rows(const Job& job, const Plan& plan,
                                          const StageLayout& stage, const StageTensors& tensors);
SequenceRows nanotron_sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
BuiltStage nanotron_start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                             const StageTensors& tensors);

// A weight gradient in the weight's dtype: made by its product, alive until the backward of the
// microbatch has ended.
inline BlockRow& keep_gradient(RowList& rows, std::string_view name, std::int64_t elements,
                               DType dtype, Step born) {
  return rows.use_as(Component::kGradients, name, elements, dtype, born, Step::kWeight,
                     "of the weight, in its dtype; until the microbatch's backward ends");
}

template <class Block>
std::vector<BlockRow> rows_of_block(const Job& job, const Plan& plan, void (*add)(Block&)) {
  RowList rows(1);
  Block block{.job = job, .plan = plan, .s = block_shape(job, plan), .rows = rows};
  add(block);
  return rows.rows;
}

// The rows of a kind of block, written by one of three functions of the framework.
template <class Block>
std::vector<BlockRow> eager_rows(const Job& job, const Plan& plan, BlockKind kind,
                                 void (*embedding)(Block&), void (*layer)(Block&),
                                 void (*head)(Block&)) {
  switch (kind) {
    case BlockKind::kEmbedding: return rows_of_block(job, plan, embedding);
    case BlockKind::kDenseLayer: return rows_of_block(job, plan, layer);
    case BlockKind::kHead: return rows_of_block(job, plan, head);
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss:
    case BlockKind::kSentOutput: return {};
    case BlockKind::kMoeLayer:
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kMtp: break;
  }
  throw std::logic_error("eager_rows: a layer that has no rows");
}

}  // namespace shardplan
