#include "estimator/ledger/stage_peak.h"

#include <algorithm>
#include <numeric>

#include "estimator/plan/in_flight.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kArenaMultiple = 2 * kMiB;

void raise_in_action(StagePoint& best, std::int64_t bytes, std::size_t state,
                     const ChunkPoint& point) {
  if (point.bytes >= 0 && bytes + point.bytes > best.bytes) {
    best = {.bytes = bytes + point.bytes, .state = state, .point = point};
  }
}

std::span<const MomentKind> moments_of(const InFlightState& state) {
  static constexpr std::array kReduction = {MomentKind::kReduction};
  static constexpr std::array kForward = {MomentKind::kForward, MomentKind::kLossForward};
  static constexpr std::array kBackward = {MomentKind::kReplay, MomentKind::kBackward,
                                           MomentKind::kLossBackward};
  static constexpr std::array kWeight = {MomentKind::kWeight};
  if (state.reduces) {
    return kReduction;
  }
  switch (state.action) {
    case ActionKind::kForward: return kForward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput: return kBackward;
    case ActionKind::kBackwardWeight: return kWeight;
  }
  return {};
}

struct Arenas {
  std::int64_t persistent_bytes = 0;
  std::int64_t dynamic_bytes = 0;
  std::int64_t fixed_bytes = 0;
  std::int64_t frame_bytes = 0;
};

// Static arenas: what lives between steps lies in one; the other is rings of slots, fixed buffers
// and one frame. Both are whole multiples of 2 MiB.
Arenas arenas_of(const StateBytes& state, const ArenaSizes& sizes, std::int64_t ring_bytes,
                 std::int64_t peak_bytes) {
  const std::int64_t idle = state.alive[static_cast<std::size_t>(Phase::kIdle)];
  std::int64_t beyond = 0;  // buffers of the state that do not stay between steps
  for (std::int64_t phase = 0; phase < kNumPhases; ++phase) {
    const bool has_frame = static_cast<Phase>(phase) == Phase::kGradientNorm;
    beyond = std::max(beyond, state.alive[static_cast<std::size_t>(phase)] - idle -
                                  (has_frame ? state.frame : 0));
  }
  Arenas arenas;
  arenas.fixed_bytes = std::accumulate(sizes.fixed_bytes.begin(), sizes.fixed_bytes.end(), beyond);
  // At least what is alive, where plans have rows but no program yet.
  arenas.frame_bytes = std::max(
      {state.frame, sizes.frame_bytes, peak_bytes - idle - arenas.fixed_bytes - ring_bytes});
  arenas.persistent_bytes = round_up(idle, kArenaMultiple);
  arenas.dynamic_bytes =
      round_up(arenas.fixed_bytes + ring_bytes + arenas.frame_bytes, kArenaMultiple);
  return arenas;
}

void set_arenas(StagePeaks& peaks, const StateBytes& state, std::span<const ChunkPeaks> chunks,
                std::span<const InFlightState> schedule) {
  ArenaSizes sizes;
  for (const ChunkPeaks& chunk : chunks) { sizes.raise(arena_sizes(chunk)); }
  const std::array<std::int64_t, 3> slots = ring_slots(schedule);
  peaks.slots_bytes =
      std::inner_product(slots.begin(), slots.end(), sizes.slot_bytes.begin(), std::int64_t{0});
  const Arenas arenas = arenas_of(state, sizes, peaks.slots_bytes, peaks.peak_bytes);
  peaks.fixed_bytes = arenas.fixed_bytes;
  peaks.frame_bytes = arenas.frame_bytes;
  peaks.persistent_arena_bytes = arenas.persistent_bytes;
  peaks.dynamic_arena_bytes = arenas.dynamic_bytes;
}

}  // namespace

void ArenaSizes::raise(const ArenaSizes& other) {
  const auto raise_all = [](auto& sizes, const auto& others) {
    for (std::size_t i = 0; i < sizes.size(); ++i) { sizes[i] = std::max(sizes[i], others[i]); }
  };
  frame_bytes = std::max(frame_bytes, other.frame_bytes);
  raise_all(slot_bytes, other.slot_bytes);
  raise_all(fixed_bytes, other.fixed_bytes);
}

ArenaSizes arena_sizes(const ChunkPeaks& chunk) {
  return {.frame_bytes = chunk.frame_bytes,
          .slot_bytes = {chunk.saved_slot_bytes, chunk.input_slot_bytes, chunk.pending_slot_bytes},
          .fixed_bytes = chunk.fixed_bytes};
}

std::array<std::int64_t, 3> ring_slots(std::span<const InFlightState> schedule) {
  std::array<std::int64_t, 3> slots{};
  for (const InFlightState& in_flight : schedule) {
    const std::int64_t saved =
        std::accumulate(in_flight.saved.begin(), in_flight.saved.end(), std::int64_t{0});
    const std::int64_t pending = std::accumulate(in_flight.pending_weight.begin(),
                                                 in_flight.pending_weight.end(), std::int64_t{0});
    const bool is_weight = in_flight.action == ActionKind::kBackwardWeight;
    const bool leaves_pending = is_weight || in_flight.action == ActionKind::kBackwardInput;
    slots[0] = std::max(slots[0], saved + (is_weight ? 0 : 1));
    slots[1] = std::max(slots[1], saved + pending + 1);
    slots[2] = std::max(slots[2], pending + (leaves_pending ? 1 : 0));
  }
  return slots;
}

std::int64_t arena_bytes(const StateBytes& state, const ActionBytes& actions,
                         std::int64_t peak_bytes) {
  const Arenas arenas = arenas_of(state, actions.arena, actions.ring_bytes, peak_bytes);
  return arenas.persistent_bytes + arenas.dynamic_bytes;
}

// A delayed weight gradient counts as made: all gradients of its chunk at once.
bool holds_gradients(const InFlightState& state, std::size_t chunk) {
  const bool is_made_now = !state.reduces && state.action == ActionKind::kBackwardWeight &&
                           static_cast<std::size_t>(state.chunk) == chunk;
  return state.has_gradients[chunk] > 0 || is_made_now;
}

bool holds_parameters(const InFlightState& state, std::size_t chunk) {
  return !state.gathered.empty() && state.gathered[chunk] > 0;
}

bool holds_reduced(const InFlightState& state, std::size_t chunk) {
  return !state.reduced.empty() && state.reduced[chunk] > 0;
}

bool makes_gradients(const InFlightState& state) {
  return !state.reduces && state.action == ActionKind::kBackward &&
         state.has_gradients[static_cast<std::size_t>(state.chunk)] == 0;
}

Phase phase_of(MomentKind moment) {
  switch (moment) {
    case MomentKind::kStartUp: return Phase::kStartUp;
    case MomentKind::kForward:
    case MomentKind::kLossForward: return Phase::kForward;
    case MomentKind::kReplay:
    case MomentKind::kBackward:
    case MomentKind::kLossBackward:
    case MomentKind::kWeight: return Phase::kBackward;
    case MomentKind::kReduction: return Phase::kReduction;
    case MomentKind::kOptimizer: return Phase::kOptimizer;
    case MomentKind::kParameterGather: return Phase::kParameterGather;
  }
  return Phase::kIdle;
}

StagePeaks stage_peaks(const Job& job, const StateBytes& state, std::span<const ChunkPeaks> chunks,
                       std::span<const InFlightState> schedule) {
  StagePeaks peaks;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const InFlightState& now = schedule[i];
    std::int64_t in_flight = 0;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      in_flight += now.saved[chunk] * chunks[chunk].kept_bytes +
                   now.pending_weight[chunk] * chunks[chunk].pending_bytes +
                   (holds_gradients(now, chunk) ? chunks[chunk].gradient_bytes : 0) +
                   (holds_parameters(now, chunk) ? chunks[chunk].gathered_bytes : 0) +
                   (holds_reduced(now, chunk) ? chunks[chunk].reduced_bytes : 0);
    }
    const ChunkPeaks& running = chunks[static_cast<std::size_t>(now.chunk)];
    const ChunkPoints& points = makes_gradients(now) ? running.first_points
                                : now.gathers        ? running.gathering_points
                                                     : running.points;
    for (const MomentKind moment : moments_of(now)) {
      const std::size_t index = static_cast<std::size_t>(moment);
      const std::int64_t base = state.alive[static_cast<std::size_t>(phase_of(moment))];
      raise_in_action(peaks.moments[index], base + in_flight, i, points[index]);
    }
  }
  std::int64_t first_step = 0;
  for (const StagePoint& point : peaks.moments) {
    first_step = std::max(first_step, point.bytes - state.made_by_first_step);
  }
  const auto set_between_actions = [&peaks, &state](MomentKind moment) {
    const std::int64_t bytes = state.alive[static_cast<std::size_t>(phase_of(moment))];
    StagePoint& point = peaks.moments[static_cast<std::size_t>(moment)];
    if (bytes > point.bytes) {  // gradients of a chunk may be reduced between others' actions
      point = {.bytes = bytes, .state = 0, .point = {}};
    }
    return bytes;
  };
  // Start-up is before the first step; the optimizer's state is made within its step.
  set_between_actions(MomentKind::kStartUp);
  const std::int64_t optimizer = set_between_actions(MomentKind::kOptimizer);
  first_step =
      std::max({first_step, set_between_actions(MomentKind::kReduction) - state.made_by_first_step,
                optimizer - std::min(state.made_by_first_step, state.ends_before_made),
                set_between_actions(MomentKind::kParameterGather)});
  std::int64_t steady = 0;
  for (std::int64_t i = 0; i < kNumMoments; ++i) {
    const std::int64_t bytes = peaks.moments[static_cast<std::size_t>(i)].bytes;
    steady = static_cast<MomentKind>(i) == MomentKind::kStartUp ? steady : std::max(steady, bytes);
    if (bytes > peaks.peak_bytes) {
      peaks.peak_bytes = bytes;
      peaks.peak = static_cast<MomentKind>(i);
    }
  }
  if (job.profile.allocator == AllocatorKind::kStaticArenas) {
    set_arenas(peaks, state, chunks, schedule);
    peaks.arena_slack_bytes =
        peaks.persistent_arena_bytes + peaks.dynamic_arena_bytes - peaks.peak_bytes;
    first_step = peaks.peak_bytes;
    steady = peaks.peak_bytes;
  }
  peaks.allocated_bytes = peaks.peak_bytes + peaks.arena_slack_bytes;
  peaks.first_step_bytes = first_step + peaks.arena_slack_bytes;
  peaks.steady_bytes = steady + peaks.arena_slack_bytes;
  return peaks;
}

}  // namespace shardplan
