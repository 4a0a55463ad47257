// A rank whose allocations are played in full: what its tape says of every tensor, and the rows and
// peaks that are read from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/plan/dtype.h"
#include "estimator/plan/framework_profile.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// A row of the ledger. Constants outlive every tape.
struct TapeLabel {
  Component component = Component::kActivations;
  std::string_view name;
  DType dtype = DType::kBf16;  // where a run does not know each tensor's: kBf16 is that of weights
  std::string_view formula;    // letters as in ledger/block_rows.h
  const TapeLabel* of_gradients = nullptr;  // of what its operators make in backward; none: itself
  bool is_of_first_step = false;            // made by the first step of the optimizer
};

// Tensors of higher ids are of the row, up to the next entry.
struct LabelStart {
  std::int64_t after_id = 0;
  const TapeLabel* label = nullptr;
};

// Events from that place on are of the moment.
struct MomentStart {
  std::int64_t event = 0;
  MomentKind moment = MomentKind::kStartUp;
};

struct PlayedRun {
  std::vector<AllocationEvent> events;  // ids of tensors rise with time
  std::vector<LabelStart> labels;
  std::vector<MomentStart> moments;
  std::vector<DType> dtypes;        // by id; empty: those of the labels
  std::int64_t num_first_step = 0;  // events until the first step has ended
};

PlayedPeaks peaks_of(const PlayedRun& run);
// The larger of the first step's and later ones'.
std::int64_t step_peak(const PlayedPeaks& peaks);

// Rows of the tensors that are alive at the fullest instant of each phase, and the run's peaks;
// `half`: the type of weights and activations where labels say so. With an allocator peaks count
// its blocks, of which a row has what is too small to be split off.
StageState state_of_run(const PlayedRun& run, DType half,
                        std::optional<AllocatorKind> allocator = std::nullopt);

}  // namespace shardplan
