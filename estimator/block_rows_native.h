// Pieces of the native trainer's row tables. Provisional until it runs; what differs from
// Megatron's:
//   packed q, k and v with the rotary embedding in place, strides into attention, no copies;
//   residual add and norm in one kernel; norm outputs and the activation's output written again in
//   backward under selective recompute; a loss over chunks of tokens; products that add into the
//   main gradients; experts with a bounded number of received rows. Letters in block_rows.h.
#pragma once

#include "estimator/block_rows.h"

namespace shardplan {

struct NativeBlock {
  static constexpr std::int64_t kAlignment = 256;  // bytes, of every tensor in an arena

  const Job& job;
  const Plan& plan;
  BlockShape shape;
  RowList rows{kAlignment};

  bool recomputes(bool RecomputeModules::*module) const {
    return plan.recompute.granularity == RecomputeGranularity::kSelective &&
           plan.recompute.modules.*module;
  }
  Step weight_step(Step own) const { return shape.delayed_weight ? Step::kWeight : own; }
  std::int64_t sequence() const { return shape.hidden * shape.sharded_tokens; }
  // A row that selective recompute may drop and write again from the step `replayed` on.
  void keep_or_write_again(bool again, std::string_view name, std::int64_t elements, DType dtype,
                           Life life, Step replayed, std::string_view formula) {
    if (again) {
      rows.recompute(name, elements, dtype, life, replayed, formula);
    } else {
      rows.keep(name, elements, dtype, life, formula);
    }
  }
};

// Residual stream and norm in front of attention or FFN.
struct NormNames {
  std::string_view input;
  std::string_view statistics;
  std::string_view output;
};
void add_native_norm(NativeBlock& block, const NormNames& names, Life input, Life output);

// Gathered input and partial sums of one pair of products under sequence parallelism.
struct PairSteps {
  Step first = Step::kForwardQkv;
  Step second = Step::kForwardProjection;
  Step backward_second = Step::kBackwardProjection;
  Step backward_first = Step::kBackwardQkv;
};
struct PairNames {
  std::string_view gathered;
  std::string_view partial;
  std::string_view gathered_gradient;
  std::string_view gathered_again;
  std::string_view partial_gradient;
};
void add_sequence_exchange(NativeBlock& block, const PairNames& names, const PairSteps& steps);

void add_native_attention(NativeBlock& block);
void add_native_dense_ffn(NativeBlock& block);
void add_native_moe(NativeBlock& block);
void add_native_embedding(NativeBlock& block);
void add_native_head(NativeBlock& block);
void add_native_mtp_projection(NativeBlock& block);

}  // namespace shardplan
