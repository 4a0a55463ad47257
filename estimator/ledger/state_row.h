// One row of what a pipeline rank holds besides activations, and in which parts of a run it is
// alive.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/plan/dtype.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// Parts of a run in which a row of the state is alive: model and optimizer are built (kStartUp),
// stand there (kBuilt: "after init"), then come the steps.
enum class Phase {
  kStartUp,
  kBuilt,
  kForward,
  kBackward,
  kReduction,
  kGradientNorm,
  kOptimizer,
  kParameterGather,
  kIdle
};
inline constexpr std::int64_t kNumPhases = 9;
inline constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {
    "start_up",      "after_init",     "forward",          "backward",     "gradient_reduction",
    "gradient_norm", "optimizer_step", "parameter_gather", "between_steps"};
constexpr std::string_view name_of(Phase phase) {
  return kPhaseNames[static_cast<std::size_t>(phase)];
}

// One fp32 list of an unfused optimizer step, a tensor for each parameter.
inline constexpr std::string_view kStepTemporaryRow = "optimizer.step_temporary";
// fp32 copies of optimizer state in fewer bits, made for the update, and what casts them back: the
// only bytes that fewer bits add.
inline constexpr std::string_view kWidenedStateRow = "optimizer.widened_state";
inline constexpr std::string_view kCastMomentRow = "optimizer.cast_moment";
// Rows that a replay of the allocator finds by itself.
inline constexpr std::string_view kAllocatorTailsRow = "allocator.block_ends";
inline constexpr std::string_view kOptimizerTailsRow = "allocator.optimizer_block_ends";
inline constexpr std::string_view kStepTailsRow = "allocator.step_block_ends";
constexpr bool is_block_ends(std::string_view row) {
  return row == kAllocatorTailsRow || row == kOptimizerTailsRow || row == kStepTailsRow;
}

// What allocates a row of the state in a replay of the allocator: the phase it begins with, the
// first gather of a product's input, the first product of every thread (forward's and autograd's),
// a copy each, the first weight gradient of each shape, or blocks of the microbatch before: what
// the pipeline's loop holds of it.
enum class MadeBy { kPhase, kFirstGather, kFirstProducts, kFirstGradients, kPipelineLoop };

struct StateRow {
  Component component = Component::kParameters;
  std::string_view name;
  std::int64_t elements = 0;
  DType dtype = DType::kBf16;
  std::int64_t bytes = 0;  // of one copy
  std::int64_t copies = 1;
  Phase first = Phase::kForward;  // by default from the first step on
  Phase last = Phase::kIdle;
  bool made_by_first_step = false;  // created by the first optimizer step
  bool ends_before_made = false;    // freed before that step makes what it makes
  std::string_view formula;
  Origin origin = Origin::kCounted;
  bool is_split = false;  // one tensor per parameter, not one in all
  AllocationStream stream = AllocationStream::kCompute;
  MadeBy made_by = MadeBy::kPhase;

  bool is_alive(Phase phase) const { return first <= phase && phase <= last; }
  bool is_resident() const { return first <= Phase::kForward && last == Phase::kIdle; }
  std::int64_t total_bytes() const { return bytes * copies; }
};

// Resident and p2p buffers of the size of a microbatch; rows without elements do not exist.
using SequenceRows = std::array<StateRow, 10>;

// What they look at of a plan besides the ends of their stage: plans that agree in it, and in the
// sizes of a microbatch, have equal rows.
struct SeenBySequences {
  std::array<std::int64_t, 2> pipeline{};
  bool experts = true;    // ep, etp
  bool cp_method = true;  // and whether weight gradients are delayed
};

// Collects rows; those without elements or copies do not exist.
struct StateRowList {
  std::int64_t alignment_bytes = 1;  // sizes are rounded up to multiples of it
  std::vector<StateRow> rows = {};

  void add(StateRow row);
};

// Bytes of state rows alive in each phase; what search sums without keeping rows.
struct StateBytes {
  std::array<std::int64_t, kNumPhases> alive{};  // by Phase
  std::int64_t made_by_first_step = 0;
  std::int64_t ends_before_made = 0;
  std::int64_t start_up_only = 0;  // freed before the first step
  std::int64_t remade = 0;         // of rows that are made in every step and live on between steps
  std::int64_t side_streams = 0;   // most that lives on streams other than that of compute
  std::int64_t widened = 0;        // of kWidenedStateRow and kCastMomentRow
  std::int64_t block_ends = 0;     // of the three rows of ends of blocks
  std::int64_t frame = 0;          // native: of the gradient norm, on the frame

  void add(const StateRow& row);
  void add(const StateBytes& other) {
    for (std::size_t phase = 0; phase < alive.size(); ++phase) {
      alive[phase] += other.alive[phase];
    }
    made_by_first_step += other.made_by_first_step;
    ends_before_made += other.ends_before_made;
    start_up_only += other.start_up_only;
    remade += other.remade;
    side_streams += other.side_streams;
    widened += other.widened;
    block_ends += other.block_ends;
    frame += other.frame;
  }
};

// Two parts of a stage's state, added where they are asked for.
struct StateSum {
  const StateBytes& one;
  const StateBytes& other;

  std::int64_t of(std::int64_t StateBytes::*bytes) const { return one.*bytes + other.*bytes; }
  std::int64_t alive(Phase phase) const {
    return one.alive[static_cast<std::size_t>(phase)] +
           other.alive[static_cast<std::size_t>(phase)];
  }
  StateBytes whole() const {
    StateBytes sum = one;
    sum.add(other);
    return sum;
  }
};

// The rows with their bytes, rounded up to multiples of the alignment.
SequenceRows sized(SequenceRows rows, std::int64_t alignment_bytes = 1);

}  // namespace shardplan
