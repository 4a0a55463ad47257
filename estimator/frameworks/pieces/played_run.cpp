#include "estimator/frameworks/pieces/played_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/ledger/stage_peak.h"
#include "estimator/ledger/state_row.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

std::size_t place(Phase phase) {
  return static_cast<std::size_t>(phase);
}

// What is allocated after the first `events` of a run.
struct Instant {
  std::int64_t events = 0;
  std::int64_t bytes = -1;      // -1: none yet
  std::int64_t block_ends = 0;  // of them, what blocks have beyond their tensors
};

struct RunPeaks {
  std::array<Instant, kNumPhases> phases;  // the fullest of each
  PlayedPeaks played;
};

// Reads one event after the other.
class PeakReader {
 public:
  PeakReader(const PlayedRun& run, std::optional<AllocatorKind> allocator)
      : run_(run), bytes_of_(run.events.size() + 1, 0) {
    peaks_.played.moments.fill(-1);
    if (allocator) {
      constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
      allocator_.emplace(*allocator, kUnlimited);
      block_of_.resize(run.events.size() + 1, CachingAllocator::kNone);
    }
  }

  RunPeaks read() {
    for (std::size_t i = 0; i < run_.moments.size(); ++i) {
      const bool is_last = i + 1 == run_.moments.size();
      read_moment(run_.moments[i].moment,
                  is_last ? std::ssize(run_.events) : run_.moments[i + 1].event);
    }
    set(Phase::kIdle);
    set(Phase::kParameterGather);
    return peaks_;
  }

 private:
  void read_moment(MomentKind moment, std::int64_t end) {
    if (moment == MomentKind::kOptimizer) {
      set(Phase::kGradientNorm);
    }
    raise(moment);
    while (next_ < end) {
      const AllocationEvent& event = run_.events[static_cast<std::size_t>(next_++)];
      std::int64_t& bytes = bytes_of_[static_cast<std::size_t>(event.id)];
      requested_ += event.bytes > 0 ? event.bytes : -bytes;
      bytes = event.bytes;
      alive_ = allocator_ ? in_blocks(event) : requested_;
      raise(moment);
    }
    if (moment == MomentKind::kStartUp) {
      set(Phase::kBuilt);
    }
  }
  std::int64_t in_blocks(const AllocationEvent& event) {
    std::int32_t& block = block_of_[static_cast<std::size_t>(event.id)];
    if (event.bytes > 0) {
      block = allocator_->allocate(event.bytes, event.stream);
    } else {
      allocator_->free(block);
    }
    return allocator_->allocated();
  }
  Instant now() const {
    return {.events = next_, .bytes = alive_, .block_ends = alive_ - requested_};
  }
  void raise(MomentKind moment) {
    std::int64_t& most = peaks_.played.moments[static_cast<std::size_t>(moment)];
    most = std::max(most, alive_);
    Instant& fullest = peaks_.phases[place(phase_of(moment))];
    if (alive_ > fullest.bytes) {
      fullest = now();
    }
    if (moment != MomentKind::kStartUp) {
      std::int64_t& step = next_ <= run_.num_first_step ? peaks_.played.first_step_bytes
                                                        : peaks_.played.steady_bytes;
      step = std::max(step, alive_);
    }
  }
  void set(Phase phase) { peaks_.phases[place(phase)] = now(); }

  const PlayedRun& run_;
  std::vector<std::int64_t> bytes_of_;  // of tensors, by id
  std::int64_t next_ = 0;
  std::int64_t requested_ = 0;
  std::int64_t alive_ = 0;
  std::optional<CachingAllocator> allocator_;
  std::vector<std::int32_t> block_of_;  // of tensors, by id
  RunPeaks peaks_;
};

// Tensors of one row, type and size, alive at the fullest instant of each phase.
struct Tensors {
  const TapeLabel* label = nullptr;
  DType dtype = DType::kBf16;
  std::int64_t bytes = 0;
  std::array<std::int64_t, kNumPhases> alive{};
};

class TensorCounter {
 public:
  TensorCounter(const PlayedRun& run, DType half)
      : run_(run), half_(half), of_id_(run.events.size() + 1, 0) {}

  std::vector<Tensors> count(const RunPeaks& peaks) {
    std::array<std::size_t, kNumPhases> by_time;  // phases
    std::iota(by_time.begin(), by_time.end(), std::size_t{0});
    std::ranges::sort(by_time, {}, [&](std::size_t phase) { return peaks.phases[phase].events; });
    auto next = by_time.begin();
    const auto note_instants = [&](std::int64_t events) {
      for (; next != by_time.end() && peaks.phases[*next].events == events; ++next) { note(*next); }
    };
    note_instants(0);
    for (std::size_t i = 0; i < run_.events.size(); ++i) {
      const AllocationEvent& event = run_.events[i];
      std::size_t& of = of_id_[static_cast<std::size_t>(event.id)];
      if (event.bytes > 0) {
        of = find(event);
      }
      now_[of] += event.bytes > 0 ? 1 : -1;
      note_instants(static_cast<std::int64_t>(i) + 1);
    }
    return std::move(tensors_);
  }

 private:
  // Ids rise with time.
  std::size_t find(const AllocationEvent& event) {
    while (label_ + 1 < run_.labels.size() && run_.labels[label_ + 1].after_id < event.id) {
      ++label_;
    }
    const TapeLabel* label = run_.labels[label_].label;
    const DType dtype = dtype_of(*label, event.id);
    const auto [found, is_new] =
        numbers_.try_emplace(std::tuple(label, dtype, event.bytes), tensors_.size());
    if (is_new) {
      tensors_.push_back({.label = label, .dtype = dtype, .bytes = event.bytes});
      now_.push_back(0);
    }
    return found->second;
  }
  DType dtype_of(const TapeLabel& label, std::int64_t id) const {
    if (!run_.dtypes.empty()) {
      return run_.dtypes[static_cast<std::size_t>(id)];
    }
    return label.dtype == DType::kBf16 ? half_ : label.dtype;
  }
  void note(std::size_t phase) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) { tensors_[i].alive[phase] = now_[i]; }
  }

  const PlayedRun& run_;
  const DType half_;
  std::vector<std::size_t> of_id_;
  std::map<std::tuple<const TapeLabel*, DType, std::int64_t>, std::size_t> numbers_;
  std::vector<Tensors> tensors_;
  std::vector<std::int64_t> now_;
  std::size_t label_ = 0;
};

// A row for every run of phases that have as many of the tensors.
void add_rows(const Tensors& tensors, StateRowList& rows) {
  for (std::size_t first = 0; first < tensors.alive.size();) {
    std::size_t next = first + 1;
    while (next < tensors.alive.size() && tensors.alive[next] == tensors.alive[first]) { ++next; }
    rows.add({.component = tensors.label->component,
              .name = tensors.label->name,
              .elements = div_exact(tensors.bytes, bytes_of(tensors.dtype)),
              .dtype = tensors.dtype,
              .copies = tensors.alive[first],
              .first = static_cast<Phase>(first),
              .last = static_cast<Phase>(next - 1),
              .made_by_first_step = tensors.label->is_of_first_step,
              .formula = tensors.label->formula});
    first = next;
  }
}

void add_block_ends(const RunPeaks& peaks, StateRowList& rows) {
  for (std::size_t phase = 0; phase < peaks.phases.size(); ++phase) {
    const std::int64_t bytes = peaks.phases[phase].block_ends;
    if (bytes > 0) {
      rows.add({.component = Component::kTemporaries,
                .name = kAllocatorTailsRow,
                .elements = bytes,
                .dtype = DType::kBool,
                .copies = 1,
                .first = static_cast<Phase>(phase),
                .last = static_cast<Phase>(phase),
                .formula = "bytes of blocks beyond their tensors: rounding to 512, and what is too "
                           "small to be split off"});
    }
  }
}

}  // namespace

PlayedPeaks peaks_of(const PlayedRun& run) {
  return PeakReader(run, std::nullopt).read().played;
}

std::int64_t step_peak(const PlayedPeaks& peaks) {
  return std::max(peaks.first_step_bytes, peaks.steady_bytes);
}

StageState state_of_run(const PlayedRun& run, DType half, std::optional<AllocatorKind> allocator) {
  const RunPeaks peaks = PeakReader(run, allocator).read();
  StateRowList rows;
  for (const Tensors& tensors : TensorCounter(run, half).count(peaks)) { add_rows(tensors, rows); }
  add_block_ends(peaks, rows);
  StageState state;
  state.rows = std::move(rows.rows);
  state.played = peaks.played;
  return state;
}

}  // namespace shardplan
