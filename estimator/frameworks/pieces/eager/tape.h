// The tape of a rank that plays its model operator by operator: which tensors are made and freed,
// what they are called, and at which moment of a run they are made.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "estimator/frameworks/pieces/played_run.h"
#include "estimator/ledger/allocation_tape.h"
#include "estimator/plan/dtype.h"

namespace shardplan::eager {

using Label = TapeLabel;

class Tape final : public ProductTape {
 public:
  using ProductTape::ProductTape;

  // Tensors made from now on are of that row. Returns the row until now.
  const Label* enter(const Label* label);
  const Label* label() const { return labels_.empty() ? nullptr : labels_.back().label; }

  // What is written from now on belongs to that moment.
  void begin(MomentKind moment) { moments_.push_back({num_events(), moment}); }

  // A tensor of that many bytes of the type; no bytes: none.
  TapeTensor make_typed(std::int64_t bytes, DType dtype,
                        AllocationStream stream = AllocationStream::kCompute);

  std::vector<LabelStart> take_labels() { return std::move(labels_); }
  std::vector<MomentStart> take_moments() { return std::move(moments_); }
  std::vector<DType> take_dtypes();

 private:
  std::vector<DType> dtypes_;  // by id
  std::vector<LabelStart> labels_;
  std::vector<MomentStart> moments_;
};

// Tensors made while it lives are of the row.
class InRow {
 public:
  InRow(Tape& tape, const Label& label) : tape_(tape), outer_(tape.enter(&label)) {}
  ~InRow() { tape_.enter(outer_); }
  InRow(const InRow&) = delete;
  InRow& operator=(const InRow&) = delete;

 private:
  Tape& tape_;
  const Label* outer_;
};

}  // namespace shardplan::eager
