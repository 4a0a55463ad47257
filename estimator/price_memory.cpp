// The pieces of a price's memory: what ranks hold in flight, and between steps.
#include <algorithm>
#include <bit>
#include <utility>

#include "estimator/outside_memory.h"
#include "estimator/price_pieces.h"

namespace shardplan {
namespace {

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

// Ranks whose layouts are equal hold no more in flight than the first of them, at any action
// (warm-ups get shorter along the pipeline). Schedules that delay weight gradients trade one for
// the other, and where states tell whether gradients exist, a later rank makes them sooner: there
// every rank counts.
bool first_rank_holds_most(const ScheduleShape& shape) {
  return !delays_weight_gradients(shape.schedule) && !shape.tells_gradients;
}

// What depends on the schedule alone repeats with every group of microbatches.
ScheduleShape shortest(const ScheduleShape& shape) {
  return shape.schedule == Schedule::kGpipe ? shape : shortest_equivalent(shape);
}

bool all_at_least(std::span<const std::int64_t> one, std::span<const std::int64_t> other) {
  return std::ranges::equal(one, other, std::ranges::greater_equal{});
}

// Of states that hold no more than another at the same action one stays.
void add_state(RankLoad& load, const LoadState& state, std::span<const std::int64_t> counts) {
  const std::ptrdiff_t width = std::ssize(counts);
  for (std::size_t i = load.states.size(); i-- > 0;) {
    // Found gradients are counted whole, those being made are not: equal flags only.
    if (load.states[i] != state) {
      continue;
    }
    const auto first = load.counts.begin() + static_cast<std::ptrdiff_t>(i) * width;
    const std::span<const std::int64_t> known(first, first + width);
    if (all_at_least(known, counts)) {
      return;
    }
    if (all_at_least(counts, known)) {
      load.states.erase(load.states.begin() + static_cast<std::ptrdiff_t>(i));
      load.counts.erase(first, first + width);
    }
  }
  load.states.push_back(state);
  load.counts.insert(load.counts.end(), counts.begin(), counts.end());
}

std::size_t index_in(std::vector<std::size_t>& numbers, std::size_t number) {
  const auto same = std::ranges::find(numbers, number);
  const std::size_t index = static_cast<std::size_t>(same - numbers.begin());
  if (same == numbers.end()) {
    numbers.push_back(number);
  }
  return index;
}

// Equal chunks count together.
RankLoad rank_load(std::span<const std::size_t> chunks, std::span<const InFlightState> schedule) {
  RankLoad load;
  std::vector<std::size_t> at;  // by local chunk: index into load.chunks
  for (const std::size_t chunk : chunks) { at.push_back(index_in(load.chunks, chunk)); }
  const std::size_t width = 3 * load.chunks.size();
  std::vector<std::int64_t> counts(width);
  for (const InFlightState& now : schedule) {
    std::ranges::fill(counts, 0);
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      std::int64_t* const of = counts.data() + 3 * at[chunk];
      of[0] += now.saved[chunk];
      of[1] += now.pending_weight[chunk];
      of[2] += holds_gradients(now, chunk) ? 1 : 0;
    }
    const LoadState state{.action = now.action,
                          .makes_gradients = makes_gradients(now),
                          .running = at[static_cast<std::size_t>(now.chunk)]};
    add_state(load, state, counts);
  }
  return load;
}

std::int64_t running_bytes(const ChunkBytes& chunk, const LoadState& state) {
  switch (state.action) {
    case ActionKind::kForward: return chunk.forward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return state.makes_gradients ? chunk.first_backward : chunk.backward;
    case ActionKind::kBackwardWeight: return chunk.weight;
  }
  return -1;
}

ActionBytes action_bytes(const RankLoad& load, std::span<const ChunkBytes> chunks,
                         bool has_arenas) {
  ActionBytes bytes;
  const std::int64_t* count = load.counts.data();
  for (const LoadState& state : load.states) {
    std::int64_t in_flight = 0;
    for (const std::size_t at : load.chunks) {
      const ChunkBytes& chunk = chunks[at];
      in_flight += count[0] * chunk.kept + count[1] * chunk.pending + count[2] * chunk.gradient;
      count += 3;
    }
    const std::int64_t running = running_bytes(chunks[load.chunks[state.running]], state);
    if (running >= 0) {
      std::int64_t& most = state.action == ActionKind::kForward ? bytes.forward : bytes.backward;
      most = std::max(most, in_flight + running);
    }
  }
  if (!has_arenas) {
    return bytes;
  }
  for (const std::size_t at : load.chunks) { bytes.arena.raise(chunks[at].arena); }
  for (std::size_t i = 0; i < load.slots.size(); ++i) {
    bytes.ring_bytes += load.slots[i] * bytes.arena.slot_bytes[i];
  }
  return bytes;
}

}  // namespace

const PieceMemo<LayoutPiece, 3>::Piece& PricePieces::layout(const Plan& plan) {
  const PieceKey<2> groups_of = layout_key(plan);
  return layout_pieces.find({split(plan).number, groups_of[0], groups_of[1]},
                            [&](LayoutPiece& piece) { build_layout(plan, piece); });
}

void PricePieces::build_layout(const Plan& plan, LayoutPiece& layout) {
  const LayerPartition partition = partition_layers(job, plan);
  layout = {};
  for (const std::int64_t rank : split(plan).value.firsts) {
    layout.classes.push_back(stage_layout(job, plan, partition, rank));
    layout.of_class.emplace_back();
    for (const ChunkLayout& chunk : layout.classes.back().chunks) {
      layout.of_class.back().push_back(index_in(layout.chunks, number_chunk(chunk)));
    }
  }
  layout.pattern = patterns.try_emplace(layout.of_class, std::ssize(patterns)).first->second;
}

const std::vector<InFlightState>& PricePieces::in_flight(const ScheduleShape& shape,
                                                         std::int64_t rank) {
  return schedule_pieces
      .find({packed(number(shape.schedule), rank), packed(shape.pp, shape.vpp),
             shape.num_microbatches, shape.group},
            [&](std::vector<InFlightState>& piece) { piece = peak_in_flight_states(shape, rank); })
      .value;
}

const LoadPiece& PricePieces::load(const Plan& plan, const ScheduleShape& shape,
                                   const LayoutPiece& stages) {
  const ScheduleShape shorter = shortest(shape);
  return load_pieces
      .find({split(plan).number, stages.pattern,
             packed(shorter.num_microbatches, number(shorter.schedule)), shorter.group},
            [&](LoadPiece& piece) { build_load(plan, shorter, stages, piece); })
      .value;
}

void PricePieces::build_load(const Plan& plan, const ScheduleShape& shape,
                             const LayoutPiece& stages, LoadPiece& load) {
  const SplitPiece& classes = split(plan).value;
  load.ranks.clear();
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    const std::int64_t of = classes.of_rank[static_cast<std::size_t>(rank)];
    const std::size_t stage = static_cast<std::size_t>(of);
    if (first_rank_holds_most(shape) && classes.firsts[stage] != rank) {
      continue;
    }
    RankLoad ranked = rank_load(stages.of_class[stage], in_flight(shape, rank));
    if (job.profile.allocator == AllocatorKind::kStaticArenas) {
      ranked.slots = ring_slots(in_flight(shape, rank));
    }
    ranked.rank = rank;
    ranked.stage_class = stage;
    load.ranks.push_back(std::move(ranked));
  }
}

const SequencePiece& PricePieces::sequences(const Plan& plan, const ScheduleShape& shape) {
  const PieceKey<8>& axes = block_axes;
  return sequence_pieces
      .find({axes[0], axes[1], axes[2], split(plan).number,
             packed(shape.num_microbatches, number(plan.schedule)), axes[4]},
            [&](SequencePiece& piece) {
              piece.classes.clear();
              for (const StageLayout& stage : layout(plan).value.classes) {
                StateBytes bytes;
                for (const StateRow& row : sequence_rows(job, plan, stage.ends)) { bytes.add(row); }
                piece.classes.push_back(bytes);
              }
            })
      .value;
}

void PricePieces::build_activations(const Plan& plan, const ScheduleShape& shape) {
  const bool has_arenas = job.profile.allocator == AllocatorKind::kStaticArenas;
  const LayoutPiece& stages = layout(plan).value;
  const LoadPiece& held = load(plan, shape, stages);
  const SequencePiece& buffers = sequences(plan, shape);
  const PieceMemo<BlockPiece, 8>::Piece& blocks = block(plan);
  chunk_byte_space.resize(stages.chunks.size());
  for (std::size_t chunk = 0; chunk < stages.chunks.size(); ++chunk) {
    chunk_byte_space[chunk] = chunk_bytes(plan, blocks, stages.chunks[chunk]);
  }
  last_activations.ranks.resize(held.ranks.size());
  for (std::size_t i = 0; i < held.ranks.size(); ++i) {
    const RankLoad& rank = held.ranks[i];
    last_activations.ranks[i] = {.rank = rank.rank,
                                 .stage_class = rank.stage_class,
                                 .actions = action_bytes(rank, chunk_byte_space, has_arenas),
                                 .buffers = buffers.classes[rank.stage_class]};
  }
}

// No plan asks for the same again but those that follow.
const ActivationPiece& PricePieces::activations(const Plan& plan, const ScheduleShape& shape) {
  const PieceKey<2> key = {microbatch_number, shape.num_microbatches};
  if (!is_same(key, activation_key)) {
    activation_key = {};  // should it throw
    build_activations(plan, shape);
    activation_key = key;
  }
  return last_activations;
}

const PieceMemo<TensorPiece, 4>::Piece& PricePieces::tensors(const Plan& plan) {
  const PieceKey<3> key = {grid_piece->number, packed(plan.pp, plan.vpp), split_number};
  if (last_tensors == nullptr || !is_same(key, last_tensor_key)) {
    last_tensors =
        &tensor_pieces.find({split(plan).number, packed(plan.tp, plan.ep),
                             packed(plan.etp, grid().dense_shard), grid().expert_shard},
                            [&](TensorPiece& piece) {
                              piece.classes.clear();
                              for (const StageLayout& stage : layout(plan).value.classes) {
                                piece.classes.push_back(stage_tensors(job, plan, stage));
                              }
                            });
    last_tensor_key = key;
  }
  return *last_tensors;
}

// An unfused optimizer has temporaries that know whether experts step apart.
const StatePiece& PricePieces::state(const Plan& plan) {
  const bool apart = !job.profile.fused_optimizer && plan.sequence_parallel;
  const std::int64_t switches =
      (plan.offload.activations ? 1 : 0) + (plan.offload.parameters ? 2 : 0) + (apart ? 4 : 0);
  return state_pieces
      .find({tensors(plan).number, packed(dtypes_number(plan), 8 * plan.zero + switches),
             std::bit_cast<std::int64_t>(plan.offload.optimizer), is_wide ? block(plan).number : 0,
             is_wide ? plan.micro_batch : 0, is_wide ? layout(plan).number : 0},
            [&](StatePiece& piece) {
              const std::vector<StageTensors>& of = tensors(plan).value.classes;
              const std::vector<StageLayout>& stages = layout(plan).value.classes;
              piece.classes.clear();
              for (std::size_t stage = 0; stage < stages.size(); ++stage) {
                piece.classes.push_back(stage_state(job, plan, stages[stage], of[stage]).bytes);
              }
            })
      .value;
}

const OutsidePiece& PricePieces::outside(const Plan& plan) {
  return outside_pieces
      .find({packed(grid_piece->number, plan.vpp),
             packed(plan.zero, 4 * number(plan.schedule) + number(plan.cp_method))},
            [&](OutsidePiece& piece) {
              piece.first = outside_bytes(job, plan, 0);
              piece.last = outside_bytes(job, plan, plan.pp - 1);
              piece.between = plan.pp > 2 ? outside_bytes(job, plan, 1) : 0;
            })
      .value;
}

}  // namespace shardplan
