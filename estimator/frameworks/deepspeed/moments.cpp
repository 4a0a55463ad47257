#include "estimator/frameworks/deepspeed/moments.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/moments_of_8_bits.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

using huggingface::kLeastOf8bit;
using huggingface::kMomentBlock;
using huggingface::kValuesOf8Bits;

constexpr std::int64_t kFp32 = 4;

void make_bytes(eager::Tape& tape, TapeRow row, std::int64_t elements) {
  const InRow in_row(tape, row);
  tape.make_typed(elements, DType::kFp8);
}

}  // namespace

void Moments::make(std::int64_t elements, bool counts) {
  if (!is_8bit_ || elements < kLeastOf8bit) {
    make_as(tape_, TapeRow::kNumSteps, counts && !is_8bit_ ? kFp32 : 0);
    make_as(tape_, TapeRow::kExpAvg, kFp32 * elements);
    make_as(tape_, TapeRow::kExpAvgSq, kFp32 * elements);
    return;
  }
  if (!std::exchange(has_maps_, true)) {
    make_as(tape_, TapeRow::kScales, kFp32 * kValuesOf8Bits);
    make_as(tape_, TapeRow::kScales, kFp32 * kValuesOf8Bits);
  }
  make_bytes(tape_, TapeRow::kExpAvg, elements);
  make_bytes(tape_, TapeRow::kExpAvgSq, elements);
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kMomentBlock));
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kMomentBlock));
}

}  // namespace shardplan::deepspeed
