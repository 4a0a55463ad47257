#include "estimator/frameworks/deepspeed/moments.h"

#include <utility>
#include <vector>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/pieces/huggingface/moments_of_8_bits.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

using huggingface::kLeastOf8bit;
using huggingface::kLeastPaged;
using huggingface::kMomentBlock;
using huggingface::kValuesOf8Bits;

constexpr std::int64_t kFp32 = 4;

void make_bytes(eager::Tape& tape, TapeRow row, std::int64_t elements) {
  const InRow in_row(tape, row);
  tape.make_typed(elements, DType::kFp8);
}

bool has_8_bits(OptimizerKind kind, std::int64_t elements) {
  const bool is_8bit = kind == OptimizerKind::kAdamW8bit || kind == OptimizerKind::kPagedAdamW8bit;
  return is_8bit && elements >= kLeastOf8bit;
}
bool is_managed(OptimizerKind kind, std::int64_t elements) {
  return is_paged(kind) && elements >= kLeastPaged;
}

}  // namespace

void Moments::make(std::int64_t elements, bool counts) {
  const std::int64_t allocated = is_managed(kind_, elements) ? 0 : elements;
  if (!has_8_bits(kind_, elements)) {
    make_as(tape_, TapeRow::kNumSteps, counts && !is_of_bitsandbytes(kind_) ? kFp32 : 0);
    make_as(tape_, TapeRow::kExpAvg, kFp32 * allocated);
    make_as(tape_, TapeRow::kExpAvgSq, kFp32 * allocated);
    return;
  }
  if (!std::exchange(has_maps_, true)) {
    make_as(tape_, TapeRow::kScales, kFp32 * kValuesOf8Bits);
    make_as(tape_, TapeRow::kScales, kFp32 * kValuesOf8Bits);
  }
  if (allocated > 0) {
    make_bytes(tape_, TapeRow::kExpAvg, elements);
    make_bytes(tape_, TapeRow::kExpAvgSq, elements);
  }
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kMomentBlock));
  make_as(tape_, TapeRow::kScales, kFp32 * div_ceil(elements, kMomentBlock));
}

std::int64_t managed_bytes(const Job& job, const Plan& plan) {
  if (!is_paged(job.optimizer) || plan.offload.optimizer > 0) {
    return 0;
  }
  std::vector<std::int64_t> parts;
  if (plan.zero == 0) {
    parts = trained_tensors(job, plan);
  } else if (plan.zero == 3) {
    parts = deepspeed_sub_groups(job, plan);
  } else {
    parts.push_back(deepspeed_share(trained_tensors(job, plan), dense_shard_size(job, plan)));
  }
  std::int64_t bytes = 0;
  for (const std::int64_t elements : parts) {
    const std::int64_t of_element = has_8_bits(job.optimizer, elements) ? 2 : 2 * kFp32;
    bytes += is_managed(job.optimizer, elements) ? of_element * elements : 0;
  }
  return bytes;
}

}  // namespace shardplan::deepspeed
