#include "estimator/frameworks/deepspeed/state.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_peak.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

std::size_t place(Phase phase) {
  return static_cast<std::size_t>(phase);
}

// What is allocated after the first `events` of a run.
struct Instant {
  std::int64_t events = 0;
  std::int64_t bytes = -1;  // -1: none yet
};

struct RunPeaks {
  std::array<Instant, kNumPhases> phases;  // the fullest of each
  PlayedPeaks played;
};

// Reads one event after the other.
class PeakReader {
 public:
  explicit PeakReader(const DeepspeedRun& run) : run_(run), bytes_of_(run.events.size() + 1, 0) {
    peaks_.played.moments.fill(-1);
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
      alive_ += event.bytes > 0 ? event.bytes : -bytes;
      bytes = event.bytes;
      raise(moment);
    }
    if (moment == MomentKind::kStartUp) {
      set(Phase::kBuilt);
    }
  }
  void raise(MomentKind moment) {
    std::int64_t& most = peaks_.played.moments[static_cast<std::size_t>(moment)];
    most = std::max(most, alive_);
    Instant& fullest = peaks_.phases[place(phase_of(moment))];
    if (alive_ > fullest.bytes) {
      fullest = {.events = next_, .bytes = alive_};
    }
    if (moment != MomentKind::kStartUp) {
      std::int64_t& step = next_ <= run_.num_first_step ? peaks_.played.first_step_bytes
                                                        : peaks_.played.steady_bytes;
      step = std::max(step, alive_);
    }
  }
  void set(Phase phase) { peaks_.phases[place(phase)] = {.events = next_, .bytes = alive_}; }

  const DeepspeedRun& run_;
  std::vector<std::int64_t> bytes_of_;  // of tensors, by id
  std::int64_t next_ = 0;
  std::int64_t alive_ = 0;
  RunPeaks peaks_;
};

// Tensors of one row and size, alive at the fullest instant of each phase.
struct Tensors {
  TapeRow row = TapeRow::kParameters;
  std::int64_t bytes = 0;
  std::array<std::int64_t, kNumPhases> alive{};
};

class TensorCounter {
 public:
  explicit TensorCounter(const DeepspeedRun& run) : run_(run), of_id_(run.events.size() + 1, 0) {}

  std::vector<Tensors> count(const RunPeaks& peaks) {
    note(peaks, 0);
    for (std::size_t i = 0; i < run_.events.size(); ++i) {
      const AllocationEvent& event = run_.events[i];
      std::size_t& of = of_id_[static_cast<std::size_t>(event.id)];
      if (event.bytes > 0) {
        of = find(event);
      }
      now_[of] += event.bytes > 0 ? 1 : -1;
      note(peaks, static_cast<std::int64_t>(i) + 1);
    }
    return std::move(tensors_);
  }

 private:
  // Ids rise with time.
  std::size_t find(const AllocationEvent& event) {
    while (row_ + 1 < run_.rows.size() && run_.rows[row_ + 1].after_id < event.id) { ++row_; }
    const TapeRow row = run_.rows[row_].row;
    const auto [found, is_new] = numbers_.try_emplace(std::pair(row, event.bytes), tensors_.size());
    if (is_new) {
      tensors_.push_back({.row = row, .bytes = event.bytes});
      now_.push_back(0);
    }
    return found->second;
  }
  void note(const RunPeaks& peaks, std::int64_t events) {
    for (std::size_t phase = 0; phase < peaks.phases.size(); ++phase) {
      if (peaks.phases[phase].events == events) {
        for (std::size_t i = 0; i < tensors_.size(); ++i) { tensors_[i].alive[phase] = now_[i]; }
      }
    }
  }

  const DeepspeedRun& run_;
  std::vector<std::size_t> of_id_;
  std::map<std::pair<TapeRow, std::int64_t>, std::size_t> numbers_;
  std::vector<Tensors> tensors_;
  std::vector<std::int64_t> now_;
  std::size_t row_ = 0;
};

// A row for every run of phases that have as many of the tensors.
void add_rows(const Tensors& tensors, DType half, StateRowList& rows) {
  const TapeRowText& text = text_of(tensors.row);
  const DType dtype = text.dtype == DType::kBf16 ? half : text.dtype;
  const bool is_moment = tensors.row == TapeRow::kExpAvg || tensors.row == TapeRow::kExpAvgSq ||
                         tensors.row == TapeRow::kNumSteps;
  for (std::size_t first = 0; first < tensors.alive.size();) {
    std::size_t next = first + 1;
    while (next < tensors.alive.size() && tensors.alive[next] == tensors.alive[first]) { ++next; }
    rows.add({.component = text.component,
              .name = text.name,
              .elements = div_exact(tensors.bytes, bytes_of(dtype)),
              .dtype = dtype,
              .copies = tensors.alive[first],
              .first = static_cast<Phase>(first),
              .last = static_cast<Phase>(next - 1),
              .made_by_first_step = is_moment,
              .formula = text.formula});
    first = next;
  }
}

std::int64_t step_peak(const PlayedPeaks& played) {
  return std::max(played.first_step_bytes, played.steady_bytes);
}

}  // namespace

std::vector<std::int64_t> deepspeed_sub_groups(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSubGroup = 1'000'000'000;
  const std::int64_t ranks = dense_shard_size(job, plan);
  std::vector<std::int64_t> groups = {0};
  for (const std::int64_t elements : deepspeed_tensors(job.model)) {
    if (groups.back() >= kSubGroup) {
      groups.push_back(0);
    }
    groups.back() += div_ceil(elements, ranks);
  }
  return groups;
}

std::int64_t deepspeed_sub_groups_on_gpu(const Plan& plan, std::int64_t sub_groups) {
  return static_cast<std::int64_t>((1 - plan.offload.optimizer) * number(sub_groups));
}

StageState state_of_stage(const Job& job, const Plan& plan, std::optional<std::int64_t> rank) {
  const std::vector<std::int64_t> ranks =
      rank ? std::vector<std::int64_t>{*rank} : deepspeed_full_ranks(job, plan);
  DeepspeedRun fullest;
  RunPeaks peaks;
  for (const std::int64_t each : ranks) {
    DeepspeedRun run = deepspeed_run(job, plan, each);
    const RunPeaks of_run = PeakReader(run).read();
    if (fullest.events.empty() || step_peak(of_run.played) > step_peak(peaks.played)) {
      fullest = std::move(run);
      peaks = of_run;
      peaks.played.rank = each;
    }
  }
  StateRowList rows;
  for (const Tensors& tensors : TensorCounter(fullest).count(peaks)) {
    add_rows(tensors, activation_dtype(plan.precision), rows);
  }
  StageState state;
  state.rows = std::move(rows.rows);
  state.played = peaks.played;
  return state;
}

}  // namespace shardplan::deepspeed
