// The tape of a rank of DeepSpeed, which knows what its tensors are and at which moment of a run
// they are made.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/frameworks/pieces/played_run.h"
#include "estimator/ledger/allocation_tape.h"
#include "estimator/ledger/chunk_peak.h"
#include "estimator/plan/dtype.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan::deepspeed {

// Rows of the ledger. Letters: N parameters, S data-parallel ranks, R the bucket's elements; those
// of activations in block_rows.h.
enum class TapeRow : std::int8_t {
  kModel,
  kParameters,
  kGathered,
  kGatherBuffer,
  kMasterPart,
  kPartCopies,
  kExpAvg,
  kExpAvgSq,
  kNumSteps,
  kGradients,
  kWeightGradients,
  kGradientPart,
  kBucket,
  kFlatCopy,
  kOffloadBuffer,
  kOnItsWay,
  kStepCheck,
  kStepNorms,
  kFlatGradients,
  kWideGradients,
  kStepRoots,
  kWorkspace,
  kTokens,
  kRotary,
  kResidual,
  kWideNorm,
  kNorm,
  kAttention,
  kAttentionSums,
  kFfn,
  kLogits,
  kWideLogits,
  kResidualGradient,
  kWideNormGradients,
  kNormGradients,
  kAttentionGradients,
  kWideAttentionGradients,
  kFfnGradients,
  kLogitsGradient,
  kWideLogitsGradients,
  kTableWorkspace,
  kLogitsChunk,
  kTokenLosses,
  kHiddenGradient,
  kWideHeadGradient,
  kNormGradientParts,
};

const TapeLabel& text_of(TapeRow row);

class DeepspeedTape final : public ProductTape {
 public:
  using ProductTape::ProductTape;

  // Tensors made from now on are of that row. Returns the row until now.
  TapeRow enter(TapeRow row) {
    const TapeRow outer = rows_.empty() ? TapeRow::kParameters : rows_.back().row;
    if (!rows_.empty() && rows_.back().after_id == last_id()) {
      rows_.back().row = row;
    } else {
      rows_.push_back({.after_id = last_id(), .row = row});
    }
    return outer;
  }
  TapeTensor make_as(TapeRow row, std::int64_t bytes,
                     AllocationStream stream = AllocationStream::kCompute) {
    const TapeRow outer = enter(row);
    const TapeTensor tensor = make(bytes, stream);
    enter(outer);
    return tensor;
  }
  TapeTensor make_product(std::int64_t bytes) {
    const TapeTensor output = make(bytes);
    const TapeRow outer = enter(TapeRow::kWorkspace);
    make_workspace();
    enter(outer);
    return output;
  }

  // What is written from now on belongs to that moment.
  void begin(MomentKind moment) { moments_.push_back({num_events(), moment}); }

  std::vector<LabelStart> take_labels();
  std::vector<MomentStart> take_moments() { return std::move(moments_); }

 private:
  // Tensors of higher ids are of the row, up to the next entry.
  struct RowStart {
    std::int64_t after_id = 0;
    TapeRow row = TapeRow::kParameters;
  };
  std::vector<RowStart> rows_;
  std::vector<MomentStart> moments_;
};

// Tensors made while it lives are of the row.
class InRow {
 public:
  InRow(DeepspeedTape& tape, TapeRow row) : tape_(tape), outer_(tape.enter(row)) {}
  ~InRow() { tape_.enter(outer_); }
  InRow(const InRow&) = delete;
  InRow& operator=(const InRow&) = delete;

 private:
  DeepspeedTape& tape_;
  TapeRow outer_;
};

}  // namespace shardplan::deepspeed
