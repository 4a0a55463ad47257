#include "estimator/frameworks/deepspeed/moments.h"

#include <utility>

#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kBlock = 256;         // elements of a moment that share a scale
constexpr std::int64_t kLeastOf8bit = 4096;  // smaller parts stay in 32 bits
constexpr std::int64_t kMap = 256;           // values of 8 bits

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
    make_as(tape_, TapeRow::kScales, kFp32 * kMap);
    make_as(tape_, TapeRow::kScales, kFp32 * kMap);
  }
  make_bytes(tape_, TapeRow::kExpAvg, elements);
  make_bytes(tape_, TapeRow::kExpAvgSq, elements);
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kBlock));
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kBlock));
}

}  // namespace shardplan::deepspeed
