// The pieces of a price's memory: what ranks hold at once, by the schedule.
#include <algorithm>
#include <utility>

#include "estimator/plan/in_flight.h"
#include "estimator/price/pieces.h"

namespace shardplan {
namespace {

// Ranks whose layouts are equal hold no more in flight than the first of them, at any action
// (warm-ups get shorter along the pipeline). Schedules that delay weight gradients trade one for
// the other, and where states tell whether gradients exist, a later rank makes them sooner: there
// every rank counts.
bool first_rank_holds_most(const ScheduleShape& shape) {
  return !row_of(shape.schedule).splits_backward && !shape.tells_gradients;
}

// What depends on the schedule alone repeats with every group of microbatches.
ScheduleShape shortest(const ScheduleShape& shape) {
  return row_of(shape.schedule).group == MicrobatchGroup::kAll ? shape : shortest_equivalent(shape);
}

// A state of the schedule on a rank, chunks of one layout together.
struct CountedState {
  ActionKind action = ActionKind::kForward;
  bool makes_gradients = false;
  bool reduces = false;
  bool gathers = false;
  std::size_t running = 0;  // chunk
  friend bool operator==(const CountedState&, const CountedState&) = default;
};

// States of a rank, and by state and chunk the counts of kCounted.
struct CountedStates {
  static constexpr std::size_t kCounted = 5;  // saved, pending, with gradients, gathered, reduced

  std::vector<CountedState> states = {};
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> held = {};  // of one state

  // Of states that hold no more than another at the same action one stays.
  void add(const InFlightState& now) {
    held.clear();
    for (std::size_t chunk = 0; chunk < now.saved.size(); ++chunk) {
      held.push_back(now.saved[chunk]);
      held.push_back(now.pending_weight[chunk]);
      held.push_back(holds_gradients(now, chunk) ? 1 : 0);
      held.push_back(holds_parameters(now, chunk) ? 1 : 0);
      held.push_back(holds_reduced(now, chunk) ? 1 : 0);
    }
    add({.action = now.action,
         .makes_gradients = makes_gradients(now),
         .reduces = now.reduces,
         .gathers = now.gathers,
         .running = static_cast<std::size_t>(now.chunk)});
  }

 private:
  void add(const CountedState& state) {
    const std::ptrdiff_t width = std::ssize(held);
    for (std::size_t i = states.size(); i-- > 0;) {
      // Found gradients are counted whole, those being made are not: equal flags only.
      if (states[i] != state) {
        continue;
      }
      const auto first = counts.begin() + static_cast<std::ptrdiff_t>(i) * width;
      const std::span<const std::int64_t> known(first, first + width);
      if (all_at_least(known, held)) {
        return;
      }
      if (all_at_least(held, known)) {
        states.erase(states.begin() + static_cast<std::ptrdiff_t>(i));
        counts.erase(first, first + width);
      }
    }
    states.push_back(state);
    counts.insert(counts.end(), held.begin(), held.end());
  }
};

// Chunks counted together as `at` says.
InFlightState joined(const InFlightState& state, std::span<const std::size_t> at,
                     std::size_t num_chunks) {
  InFlightState sum = none_in_flight(num_chunks);
  sum.action = state.action;
  sum.chunk = static_cast<std::int64_t>(at[static_cast<std::size_t>(state.chunk)]);
  for (std::size_t chunk = 0; chunk < at.size(); ++chunk) {
    sum.saved[at[chunk]] += state.saved[chunk];
    sum.has_gradients[at[chunk]] += state.has_gradients[chunk];
  }
  return sum;
}

// Whether the counts at an action lie halfway between those at two others, where the same runs:
// what the three hold changes along a line, whose ends decide. So where one, two or three actions
// repeat as a forward, a backward and a weight gradient do.
bool lies_between(std::span<const ScheduleAction> actions, std::size_t i) {
  const auto repeats = [&](std::size_t stride) {
    if (i < stride || i + stride >= actions.size()) {
      return false;
    }
    for (std::size_t at = i; at <= i + stride; ++at) {
      const ScheduleAction& before = actions[at - stride];
      if (before.kind != actions[at].kind || before.chunk != actions[at].chunk) {
        return false;
      }
    }
    return true;
  };
  return repeats(1) || repeats(2) || repeats(3);
}

CountedStates counted_states(const ScheduleShape& shape, std::int64_t rank,
                             std::span<const std::size_t> at, std::size_t num_chunks) {
  CountedStates counted;
  if (shape.tells_parameters) {
    for (const InFlightState& state : peak_in_flight_states(shape, rank)) { counted.add(state); }
    return counted;
  }
  if (row_of(shape.schedule).group == MicrobatchGroup::kAll) {
    for (const InFlightState& state : peak_in_flight_states(shape, rank)) {
      counted.add(joined(state, at, num_chunks));
    }
    return counted;
  }
  std::vector<ScheduleAction> actions = first_actions(shape, rank);
  for (ScheduleAction& action : actions) {
    action.chunk = static_cast<std::int64_t>(at[static_cast<std::size_t>(action.chunk)]);
  }
  InFlightState now = none_in_flight(num_chunks);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    begin_action(actions[i], now);
    if (shape.tells_gradients || !lies_between(actions, i)) {
      counted.add(now);
    }
    end_action(shape, actions[i], now);
  }
  return counted;
}

// Of a chunk while it runs.
std::int64_t ChunkBytes::*running_bytes(const CountedState& state) {
  if (state.reduces) {
    return &ChunkBytes::reduction;
  }
  switch (state.action) {
    case ActionKind::kForward: return &ChunkBytes::forward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return state.makes_gradients ? &ChunkBytes::first_backward
             : state.gathers       ? &ChunkBytes::gathering_backward
                                   : &ChunkBytes::backward;
    case ActionKind::kBackwardWeight: break;
  }
  return &ChunkBytes::weight;
}

void add_state(const CountedStates& counted, std::size_t i, RankLoad& load) {
  const CountedState& state = counted.states[i];
  load.states.push_back({.running = load.chunks[state.running], .bytes = running_bytes(state)});
  const std::size_t width = load.chunks.size();
  for (std::size_t chunk = 0; chunk < width; ++chunk) {
    const std::int64_t* const counts =
        counted.counts.data() + CountedStates::kCounted * (i * width + chunk);
    load.saved.push_back(counts[0]);
    load.left.push_back({counts[1], counts[2], counts[3], counts[4]});
  }
}

// Equal chunks count together, where nothing tells which of them have gradients.
RankLoad rank_load(const ScheduleShape& shape, std::int64_t rank,
                   std::span<const std::size_t> chunks) {
  RankLoad load;
  std::vector<std::size_t> at;  // by local chunk: index into load.chunks
  for (const std::size_t chunk : chunks) {
    if (shape.tells_gradients) {
      load.chunks.push_back(chunk);
      at.push_back(load.chunks.size() - 1);
    } else {
      at.push_back(index_in(load.chunks, chunk));
    }
  }
  const CountedStates counted = counted_states(shape, rank, at, load.chunks.size());
  for (const bool is_forward : {true, false}) {
    for (std::size_t i = 0; i < counted.states.size(); ++i) {
      if ((counted.states[i].action == ActionKind::kForward) == is_forward) {
        add_state(counted, i, load);
      }
    }
    load.num_forwards = is_forward ? load.states.size() : load.num_forwards;
  }
  constexpr std::array<std::int64_t, 4> kNothing{};
  if (std::ranges::all_of(load.left, [&](const auto& counts) { return counts == kNothing; })) {
    load.left.clear();
  }
  return load;
}

}  // namespace

const LoadPiece& PricePieces::load(const ScheduleShape& shape, const LayoutPiece& stages) {
  const ScheduleShape shorter = shortest(shape);
  return load_pieces
      .find({split_piece->number, stages.pattern,
             packed(shorter.num_microbatches, static_cast<std::int64_t>(shorter.schedule)),
             shorter.group},
            [&](LoadPiece& piece) { build_load(shorter, stages, piece); })
      .value;
}

void PricePieces::build_load(const ScheduleShape& shape, const LayoutPiece& stages,
                             LoadPiece& load) {
  const SplitPiece& classes = split();
  load.ranks.clear();
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    const std::int64_t of = classes.of_rank[static_cast<std::size_t>(rank)];
    const std::size_t stage = static_cast<std::size_t>(of);
    if (first_rank_holds_most(shape) && classes.firsts[stage] != rank) {
      continue;
    }
    RankLoad ranked = rank_load(shape, rank, stages.of_class[stage]);
    if (job.profile.allocator == AllocatorKind::kStaticArenas) {
      ranked.slots = ring_slots(peak_in_flight_states(shape, rank));
    }
    ranked.rank = rank;
    ranked.stage_class = stage;
    load.ranks.push_back(std::move(ranked));
  }
}

}  // namespace shardplan
