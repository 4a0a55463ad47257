#include "estimator/frameworks/deepspeed/whole.h"

#include <utility>

#include "estimator/frameworks/deepspeed/flat.h"
#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kBucketElements = 500'000'000;  // MEMORY_OPT_ALLREDUCE_SIZE

TapeTensor make_typed(eager::Tape& tape, TapeRow row, std::int64_t elements, DType dtype) {
  const InRow in_row(tape, row);
  return tape.make_typed(bytes_of(dtype) * elements, dtype);
}

}  // namespace

WholeOptimizer::WholeOptimizer(const Job& job, const Plan& plan, eager::Tape& tape,
                               const std::vector<ZeroTensor>& trained)
    : tape_(tape),
      half_(activation_dtype(plan.precision)),
      copies_for_check_(job.profile.overflow_check != OverflowCheck::kByExtremes),
      gradients_(trained.size()),
      moments_(job, plan, tape) {
  for (const ZeroTensor& tensor : trained) { elements_.push_back(tensor.elements); }
  make_copies();
  initialize_states();
}

void WholeOptimizer::make_copies() {
  for (const std::int64_t elements : elements_) {
    TapeTensor clone = make_typed(tape_, TapeRow::kPartCopies, elements, half_);
    make_as(tape_, TapeRow::kMasterPart, kFp32 * elements);
    tape_.free(clone);
  }
}

std::vector<TapeTensor> WholeOptimizer::wide_gradients() {
  std::vector<TapeTensor> gradients;
  for (const std::int64_t elements : elements_) {
    gradients.push_back(make_as(tape_, TapeRow::kWideGradients, kFp32 * elements));
  }
  return gradients;
}

void WholeOptimizer::initialize_states() {
  std::vector<TapeTensor> zeros;
  for (const std::int64_t elements : elements_) {
    zeros.push_back(make_typed(tape_, TapeRow::kPartCopies, elements, half_));
  }
  std::vector<TapeTensor> wide = wide_gradients();
  for (const std::int64_t elements : elements_) { moments_.make(elements, true); }
  for (std::vector<TapeTensor>* gradients : {&zeros, &wide}) {
    for (TapeTensor& gradient : *gradients) { tape_.free(gradient); }
  }
}

void WholeOptimizer::take(std::int64_t parameter, eager::Tensor gradient) {
  eager::Tensor& held = gradients_[static_cast<std::size_t>(parameter)];
  if (!held.is_defined()) {
    held = std::move(gradient);
  }
}

// Each bucket is one copy of its gradients, into which the sums come back.
void WholeOptimizer::end_backward() {
  if (!is_boundary_) {
    return;
  }
  std::int64_t filled = 0;
  const auto reduce = [&] {
    TapeTensor flat = make_typed(tape_, TapeRow::kFlatCopy, std::exchange(filled, 0), half_);
    tape_.free(flat);
  };
  for (const std::int64_t elements : elements_) {
    filled += elements;
    if (filled > kBucketElements) {
      reduce();
    }
  }
  reduce();
}

// Norms of one gradient after the other in fp32, then all gradients in fp32 until the optimizer has
// read them.
void WholeOptimizer::step() {
  for (const std::int64_t elements : elements_) {
    if (copies_for_check_) {
      check_overflow_by_copies(tape_, elements, AllocationStream::kCompute);
    }
  }
  for (const std::int64_t elements : elements_) {
    TapeTensor wide = make_as(tape_, TapeRow::kStepNorms, kFp32 * elements);
    tape_.free(wide);
  }
  std::vector<TapeTensor> wide = wide_gradients();
  for (TapeTensor& gradient : wide) { tape_.free(gradient); }
  for (eager::Tensor& gradient : gradients_) { gradient = {}; }
}

}  // namespace shardplan::deepspeed
