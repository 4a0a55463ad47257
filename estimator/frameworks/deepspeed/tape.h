// The rows of a rank of DeepSpeed, and its tape, which is that of eager operators.
#pragma once

#include <cstdint>
#include <memory>

#include "estimator/frameworks/pieces/eager/autograd.h"
#include "estimator/frameworks/pieces/eager/tape.h"

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
  kScales,
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

const eager::Label& text_of(TapeRow row);

// Tensors made while it lives are of the row.
class InRow : public eager::InRow {
 public:
  InRow(eager::Tape& tape, TapeRow row) : eager::InRow(tape, text_of(row)) {}
};

inline TapeTensor make_as(eager::Tape& tape, TapeRow row, std::int64_t bytes,
                          AllocationStream stream = AllocationStream::kCompute) {
  const InRow in_row(tape, row);
  return tape.make_typed(bytes, text_of(row).dtype, stream);
}
// The output of a matrix product.
inline TapeTensor make_product(eager::Tape& tape, std::int64_t bytes) {
  const TapeTensor output = tape.make(bytes);
  const InRow in_row(tape, TapeRow::kWorkspace);
  tape.make_workspace();
  return output;
}
// A tensor that is freed when nobody holds it any more.
inline eager::Tensor held(eager::Tape& tape, TapeTensor tensor) {
  if (tensor.id == 0) {
    return {};
  }
  constexpr DType kHalf = DType::kBf16;
  return {.storage = std::make_shared<eager::Storage>(tape, tensor),
          .elements = tensor.bytes / bytes_of(kHalf),
          .dtype = kHalf,
          .node = nullptr};
}

}  // namespace shardplan::deepspeed
