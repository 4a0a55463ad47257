// A builder that makes one mistake, as a pass with a bug would: a tensor of another size, dtype or
// component, alive for one operation more or less, kept where it was temporary or the other way
// round, a slot or a buffer too many, a scope of the frame that never ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "validator/program/builder.h"

namespace shardplan {

enum class Mistake {
  kRow,              // one row more
  kFirstRow,         // one row more, the first time only
  kDType,            // twice or half the size of an element
  kComponent,        // counted as something else
  kNoPadding,        // not rounded up to kTensorAlignment
  kLater,            // used by one operation more
  kEarlier,          // not used by its last operation
  kKeptAsTemporary,  // on the frame instead of in the slot
  kTemporaryKept,    // in the slot instead of on the frame
  kExtraSlot,        // a slot taken and never freed
  kLateSlot,         // a slot freed one action later
  kExtraBuffer,      // a fixed buffer too many
  kEndlessScope,     // inner scopes of the frame pop nothing
};
std::string_view name_of(Mistake mistake);

struct Mutation {
  Mistake mistake = Mistake::kRow;
  std::string name = {};       // of the tensors it is about
  std::int64_t tensor = -1;    // kLater, kEarlier: which one
  std::int64_t operation = 0;  // ...and its last operation, before fusion

  std::string text() const;
};

class MutantBuilder : public ProgramBuilder {
 public:
  explicit MutantBuilder(Mutation mutation) : mutation_(std::move(mutation)) {}

  View persistent(const TensorSpec& spec) override;
  Cell fixed_cell(std::int64_t bytes) override;
  View place(const Cell& cell, const TensorSpec& spec) override;
  View push(const TensorSpec& spec) override;
  void pop_to(std::int64_t mark) override;
  Slot take_slot(SlotRing ring) override;
  void free_slot(const Slot& slot) override;
  View keep(const Slot& slot, const TensorSpec& spec) override;
  void emit(Operation operation) override;

 private:
  TensorSpec changed(const TensorSpec& spec);
  View unchanged(View view, const TensorSpec& spec);

  Mutation mutation_;
  std::optional<Slot> slot_;       // the last one taken
  std::optional<Slot> late_slot_;  // not freed yet
  std::int64_t num_changed_ = 0;
  std::int64_t num_operations_ = 0;
  bool is_done_ = false;
};

// Every mutation of a rank's tensors: each name with each mistake.
std::vector<Mutation> mutations_of(const Job& job, const Plan& plan, std::int64_t rank);

}  // namespace shardplan
