#include "tests/validator/lower/mutant_builder.h"

#include <algorithm>
#include <array>
#include <map>

#include "estimator/plan/job.h"
#include "validator/lower/lower.h"

namespace shardplan {
namespace {

constexpr std::array<std::string_view, 13> kNames = {
    "one row more",    "one row more, once", "another dtype",     "another component",
    "not padded",      "alive longer",       "alive shorter",     "kept as temporary",
    "temporary kept",  "a slot too many",    "a slot freed late", "a buffer too many",
    "an endless scope"};

DType other_dtype(DType dtype) {
  return bytes_of(dtype) == 4 ? DType::kBf16 : DType::kFp32;
}

// The addition and the norm may become one operation, which has no room for more.
bool may_be_fused(const Operation& op) {
  return op.kind == OpKind::kAdd || op.kind == OpKind::kRmsNormForward;
}

// Notes the last use of every tensor.
class Recorder : public ProgramBuilder {
 public:
  void emit(Operation operation) override {
    for (const std::vector<View>* views : {&operation.in, &operation.out}) {
      for (const View& view : *views) {
        if (view.present()) {
          last_use[view.tensor] = std::ssize(program().operations);
        }
      }
    }
    ProgramBuilder::emit(std::move(operation));
  }
  std::map<std::int64_t, std::int64_t> last_use;
};

}  // namespace

std::string_view name_of(Mistake mistake) {
  return kNames[static_cast<std::size_t>(mistake)];
}

std::string Mutation::text() const {
  return name + ": " + std::string(name_of(mistake)) +
         (tensor < 0 ? "" : " than operation " + std::to_string(operation));
}

// The specification with its mistake.
TensorSpec MutantBuilder::changed(const TensorSpec& spec) {
  TensorSpec wrong = spec;
  if (spec.name != mutation_.name) {
    return wrong;
  }
  switch (mutation_.mistake) {
    case Mistake::kRow: wrong.rows += 1; break;
    case Mistake::kFirstRow: wrong.rows += num_changed_ == 0 ? 1 : 0; break;
    case Mistake::kDType: wrong.dtype = other_dtype(spec.dtype); break;
    case Mistake::kComponent:
      wrong.component = spec.component == Component::kTemporaries ? Component::kActivations
                                                                  : Component::kTemporaries;
      break;
    default: break;
  }
  ++num_changed_;
  return wrong;
}

// Operations see the shape that they expect.
View MutantBuilder::unchanged(View view, const TensorSpec& spec) {
  if (spec.name == mutation_.name && mutation_.mistake == Mistake::kNoPadding) {
    program().tensors[static_cast<std::size_t>(view.tensor)].bytes =
        spec.rows * spec.cols * bytes_of(spec.dtype);
  }
  view.rows = spec.rows;
  view.cols = spec.cols;
  view.stride = spec.cols;
  return view;
}

View MutantBuilder::persistent(const TensorSpec& spec) {
  return unchanged(ProgramBuilder::persistent(changed(spec)), spec);
}

View MutantBuilder::place(const Cell& cell, const TensorSpec& spec) {
  return unchanged(ProgramBuilder::place(cell, changed(spec)), spec);
}

// place() must not change it again.
View MutantBuilder::push(const TensorSpec& spec) {
  if (spec.name == mutation_.name && mutation_.mistake == Mistake::kTemporaryKept && slot_) {
    return ProgramBuilder::keep(*slot_, spec);
  }
  const TensorSpec wrong = changed(spec);
  return unchanged(ProgramBuilder::place(frame_cell(padded_bytes(wrong)), wrong), spec);
}

View MutantBuilder::keep(const Slot& slot, const TensorSpec& spec) {
  if (spec.name == mutation_.name && mutation_.mistake == Mistake::kKeptAsTemporary) {
    return ProgramBuilder::push(spec);
  }
  return unchanged(ProgramBuilder::keep(slot, changed(spec)), spec);
}

Cell MutantBuilder::fixed_cell(std::int64_t bytes) {
  if (mutation_.mistake == Mistake::kExtraBuffer && !is_done_) {
    is_done_ = true;
    ProgramBuilder::fixed_cell(bytes);
  }
  return ProgramBuilder::fixed_cell(bytes);
}

void MutantBuilder::pop_to(std::int64_t mark) {
  if (mutation_.mistake != Mistake::kEndlessScope || mark == 0) {
    ProgramBuilder::pop_to(mark);
  }
}

Slot MutantBuilder::take_slot(SlotRing ring) {
  if (mutation_.mistake == Mistake::kExtraSlot && !is_done_) {
    is_done_ = true;
    ProgramBuilder::take_slot(ring);
  }
  slot_ = ProgramBuilder::take_slot(ring);
  return *slot_;
}

void MutantBuilder::free_slot(const Slot& slot) {
  if (mutation_.mistake != Mistake::kLateSlot) {
    ProgramBuilder::free_slot(slot);
    return;
  }
  if (late_slot_) {
    ProgramBuilder::free_slot(*late_slot_);
  }
  late_slot_ = slot;
}

void MutantBuilder::emit(Operation operation) {
  const std::int64_t index = num_operations_++;
  if (mutation_.mistake == Mistake::kLater && !is_done_ && index > mutation_.operation &&
      !may_be_fused(operation)) {
    const Tensor& tensor = program().tensors[static_cast<std::size_t>(mutation_.tensor)];
    operation.in.push_back({.tensor = mutation_.tensor,
                            .rows = tensor.rows,
                            .cols = tensor.cols,
                            .stride = tensor.cols});
    is_done_ = true;
  }
  if (mutation_.mistake == Mistake::kEarlier && index == mutation_.operation) {
    for (std::vector<View>* views : {&operation.in, &operation.out}) {
      for (View& view : *views) {
        // The first tensor of all is persistent.
        view.tensor = view.tensor == mutation_.tensor ? 0 : view.tensor;
      }
    }
  }
  ProgramBuilder::emit(std::move(operation));
}

std::vector<Mutation> mutations_of(const Job& job, const Plan& plan, std::int64_t rank) {
  Recorder recorder;
  const Program program = lower_with(recorder, job, plan, rank, {});
  std::vector<Mutation> all = {{.mistake = Mistake::kExtraSlot, .name = "slots"},
                               {.mistake = Mistake::kLateSlot, .name = "slots"},
                               {.mistake = Mistake::kExtraBuffer, .name = "buffers"},
                               {.mistake = Mistake::kEndlessScope, .name = "frame"}};
  std::map<std::string, std::int64_t> seen;
  for (std::int64_t t = 0; t < std::ssize(program.tensors); ++t) {
    const Tensor& tensor = program.tensors[static_cast<std::size_t>(t)];
    constexpr std::int64_t kUses = 3;  // of a name: in forward, again, in backward
    const std::int64_t before = seen[tensor.name]++;
    if (before == 0) {
      for (const Mistake mistake :
           {Mistake::kRow, Mistake::kFirstRow, Mistake::kDType, Mistake::kComponent,
            Mistake::kNoPadding, Mistake::kKeptAsTemporary, Mistake::kTemporaryKept}) {
        all.push_back({.mistake = mistake, .name = tensor.name});
      }
    }
    if (before < kUses && tensor.arena == Arena::kDynamic) {
      for (const Mistake mistake : {Mistake::kLater, Mistake::kEarlier}) {
        all.push_back({.mistake = mistake,
                       .name = tensor.name,
                       .tensor = t,
                       .operation = recorder.last_use.at(t)});
      }
    }
  }
  return all;
}

}  // namespace shardplan
