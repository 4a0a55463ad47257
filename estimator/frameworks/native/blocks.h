// Pieces of the native trainer's row tables: the tensors of its programs by name, alive at the same
// steps. What differs from Megatron's:
//   packed q, k and v with the rotary embedding in place, strides into attention, no copies;
//   residual add and norm in one kernel; norm outputs and the activation's output written again in
//   backward under selective recompute; a loss over chunks of tokens whose gradient is taken in the
//   forward pass; products that add into the main gradients; experts with a bounded number of
//   received rows. Letters in block_rows.h.
#pragma once

#include "estimator/ledger/block_rows.h"

namespace shardplan::native {

struct NativeBlock {
  const Job& job;
  const Plan& plan;
  BlockShape shape;
  RowList rows{kNativeAlignment};

  bool recomputes(bool RecomputeModules::*module) const {
    return plan.recompute.granularity == RecomputeGranularity::kSelective &&
           plan.recompute.modules.*module;
  }
  // The step at which a weight gradient is taken: within backward, or in an action of its own.
  Step weight_step(Step own, Step delayed) const { return shape.delayed_weight ? delayed : own; }
  std::int64_t sequence() const { return shape.hidden * shape.sharded_tokens; }
  // Steps between which a row is on the frame.
  struct Hold {
    Step pushed = Step::kForwardInput;
    Step popped = Step::kForwardInput;
  };
  static void hold(BlockRow& row, Hold steps) {
    row.pushed = steps.pushed;
    row.popped = steps.popped;
  }
  // A row that selective recompute may drop and write again at the step `replayed`, held by the
  // frame as long as `again` says. In forward the frame holds it for the whole block.
  void keep_or_write_again(bool dropped, std::string_view name, std::int64_t elements, DType dtype,
                           Life life, Step replayed, std::string_view formula, Hold again,
                           Place place = Place::kOwn) {
    if (!dropped) {
      rows.keep(name, elements, dtype, life, formula);
      return;
    }
    BlockRow& row = rows.use(name, elements, dtype, life.born, life.last_forward_use, formula);
    hold(row, {.pushed = Step::kForwardInput, .popped = kLastForward});
    row.place = place;
    hold(rows.use(name, elements, dtype, replayed, life.dies, formula), again);
  }
};

// A norm in front of attention or FFN: its input, which is the residual stream, its statistics and
// its output.
struct NativeNorm {
  std::string_view input;
  std::string_view statistics;
  std::string_view output;
  Step input_born = Step::kForwardInput;
  Step born = Step::kForwardNorm;
  Step input_last_use = Step::kForwardFfnNorm;  // in forward
  Step last_use = Step::kForwardQkv;            // of the output, in forward
  Step dies = Step::kBackwardQkvWeight;         // the output
  Step again = Step::kBackwardNormAgain;        // written again from here to...
  Step popped = Step::kBackwardQkvWeight;       // ...here
  Step backward = Step::kBackwardNorm;
  Place dropped_place = Place::kOwn;  // the two outputs of a layer take turns
};

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind);
SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind);

}  // namespace shardplan::native
