// The tape of a rank that plays its model operator by operator: which tensors are made and freed,
// what they are called, and at which moment of a run they are made.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/ledger/allocation_tape.h"
#include "estimator/ledger/chunk_peak.h"
#include "estimator/plan/dtype.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan::eager {

// A row of the ledger. Constants outlive every tape.
struct Label {
  Component component = Component::kActivations;
  std::string_view name;
  DType dtype = DType::kBf16;           // in whose elements the row counts
  std::string_view formula;             // letters as in ledger/block_rows.h
  const Label* of_gradients = nullptr;  // of what its operators make in backward; none: the same
};

class Tape final : public ProductTape {
 public:
  using ProductTape::ProductTape;

  // Tensors made from now on are of that row. Returns the row until now.
  const Label* enter(const Label* label);
  const Label* label() const { return labels_.empty() ? nullptr : labels_.back().label; }

  // What is written from now on belongs to that moment.
  void begin(MomentKind moment) { moments_.push_back({num_events(), moment}); }

  // Tensors of higher ids are of the row, up to the next entry.
  struct LabelStart {
    std::int64_t after_id = 0;
    const Label* label = nullptr;
  };
  std::vector<LabelStart> take_labels() { return std::move(labels_); }
  // Events from that place on are of the moment.
  struct MomentStart {
    std::int64_t event = 0;
    MomentKind moment = MomentKind::kStartUp;
  };
  std::vector<MomentStart> take_moments() { return std::move(moments_); }

 private:
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
