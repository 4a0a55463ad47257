// The pieces of a price's memory: what ranks hold in flight, and between steps.
#include <algorithm>
#include <array>
#include <bit>

#include "estimator/answer/blocks.h"
#include "estimator/answer/outside_memory.h"
#include "estimator/answer/stage_state.h"
#include "estimator/price/pieces.h"

namespace shardplan {
namespace {

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

// What saved microbatches hold in a state, by chunk of the load.
std::int64_t saved_bytes(const RankLoad& load, std::size_t state,
                         std::span<const std::int64_t> kept) {
  const std::int64_t* const saved = load.saved.data() + state * kept.size();
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) { bytes += saved[i] * kept[i]; }
  return bytes;
}

std::int64_t left_bytes(const RankLoad& load, std::size_t state,
                        std::span<const ChunkBytes> chunks) {
  if (load.left.empty()) {
    return 0;
  }
  const std::array<std::int64_t, 4>* left = load.left.data() + state * load.chunks.size();
  std::int64_t bytes = 0;
  for (const std::size_t chunk : load.chunks) {
    const ChunkBytes& of = chunks[chunk];
    const auto [pending, gradients, gathered, reduced] = *left++;
    bytes += pending * of.pending + gradients * of.gradient + gathered * of.gathered +
             reduced * of.reduced;
  }
  return bytes;
}

// `kept`: of the chunks of the load.
void set_actions(const RankLoad& load, std::span<const ChunkBytes> chunks,
                 std::span<const std::int64_t> kept, ActionBytes& bytes) {
  bytes.forward = -1;
  bytes.backward = -1;
  bytes.reduction = -1;
  for (std::size_t state = 0; state < load.states.size(); ++state) {
    const LoadState& now = load.states[state];
    const std::int64_t running = chunks[now.running].*now.bytes;
    if (running >= 0) {
      std::int64_t& most = state < load.num_forwards             ? bytes.forward
                           : now.bytes == &ChunkBytes::reduction ? bytes.reduction
                                                                 : bytes.backward;
      most = std::max(most,
                      running + saved_bytes(load, state, kept) + left_bytes(load, state, chunks));
    }
  }
}

void set_arenas(const RankLoad& load, std::span<const ChunkBytes> chunks, ActionBytes& bytes) {
  bytes.arena = {};
  bytes.ring_bytes = 0;
  for (const std::size_t at : load.chunks) { bytes.arena.raise(chunks[at].arena); }
  for (std::size_t i = 0; i < load.slots.size(); ++i) {
    bytes.ring_bytes += load.slots[i] * bytes.arena.slot_bytes[i];
  }
}

}  // namespace

const PieceMemo<LayoutPiece, 3>::Piece& PricePieces::layout(const Plan& plan) {
  const PieceKey<2> groups_of = layout_key(plan);
  return layout_pieces.find({split_piece->number, groups_of[0], groups_of[1]},
                            [&](LayoutPiece& piece) { build_layout(plan, piece); });
}

void PricePieces::build_layout(const Plan& plan, LayoutPiece& layout) {
  layout = {};
  for (const std::int64_t rank : split().firsts) {
    layout.classes.push_back(stage_layout(job, plan, split().partition, rank));
    layout.of_class.emplace_back();
    for (const ChunkLayout& chunk : layout.classes.back().chunks) {
      layout.of_class.back().push_back(index_in(layout.chunks, number_chunk(chunk)));
    }
  }
  for (const std::size_t chunk : layout.chunks) {
    for (const std::size_t unit : chunk_layouts[chunk].units) {
      layout.chunk_units.push_back(index_in(layout.units, unit));
    }
  }
  layout.pattern = patterns.try_emplace(layout.of_class, std::ssize(patterns)).first->second;
}

// The same for all choices of recomputation.
const std::vector<StateBytes>& PricePieces::sequences(const Plan& plan,
                                                      const ScheduleShape& shape) {
  const SeenBySequences seen = seen_by_sequences(job, plan, shape.num_microbatches);
  PieceKey<8> key = {block_axes[0],
                     seen.experts ? block_axes[1] : 0,
                     seen.cp_method
                         ? block_axes[2]
                         : microbatch_axes_number(plan, CpMethod::kRing, Schedule::kNone),
                     block_axes[4],
                     block_axes[5],
                     split_piece->number,
                     seen.pipeline[0],
                     seen.pipeline[1]};
  if (is_same(key, sequence_key)) {
    return last_sequences;
  }
  sequence_key = {};  // should it throw
  last_sequences.clear();
  const PieceKey<8> of_split = key;
  for (const StageEnds& ends : split().ends) {
    const std::int64_t chunks = packed(ends.receiving_chunks, ends.sending_chunks);
    const std::int64_t holds =
        (ends.has_cast ? 4 : 0) + (ends.has_embedding ? 2 : 0) + (ends.has_head ? 1 : 0);
    key[5] = 8 * chunks + holds;
    last_sequences.push_back(sequence_pieces
                                 .find(key,
                                       [&](StateBytes& bytes) {
                                         bytes = {};
                                         for (const StateRow& row :
                                              sequence_rows(job, plan, ends)) {
                                           bytes.add(row);
                                         }
                                       })
                                 .value);
  }
  sequence_key = of_split;
  return last_sequences;
}

void PricePieces::build_activations(const Plan& plan, const ScheduleShape& shape) {
  const bool has_arenas = job.profile.allocator == AllocatorKind::kStaticArenas;
  const LayoutPiece& stages = layout(plan).value;
  const LoadPiece& held = load(shape, stages);
  const std::vector<StateBytes>& buffers = sequences(plan, shape);
  find_chunks(plan, block(plan), stages);
  last_activations.ranks.resize(held.ranks.size());
  for (std::size_t i = 0; i < held.ranks.size(); ++i) {
    const RankLoad& load = held.ranks[i];
    RankActivations& rank = last_activations.ranks[i];
    rank.rank = load.rank;
    rank.stage_class = load.stage_class;
    kept_space.clear();
    for (const std::size_t chunk : load.chunks) {
      kept_space.push_back(chunk_byte_space[chunk].kept);
    }
    set_actions(load, chunk_byte_space, kept_space, rank.actions);
    rank.buffers = &buffers[load.stage_class];
    if (has_arenas) {
      set_arenas(load, chunk_byte_space, rank.actions);
    }
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
  const PieceKey<2> key = {grid_piece->number, split_piece->number};
  if (last_tensors == nullptr || !is_same(key, last_tensor_key)) {
    last_tensors =
        &tensor_pieces.find({split_piece->number, packed(plan.tp, plan.ep),
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

// The optimizer step's temporaries, of an unfused one or of state in fewer bits, know whether
// experts step apart.
const StatePiece& PricePieces::state(const Plan& plan) {
  const bool widens =
      std::ranges::any_of(std::array{plan.master_dtype, plan.exp_avg_dtype, plan.exp_avg_sq_dtype},
                          [](DType dtype) { return dtype != DType::kFp32; });
  const bool apart = (!job.profile.fused_optimizer || widens) && plan.sequence_parallel;
  const std::int64_t switches =
      (plan.offload.activations ? 1 : 0) + (plan.offload.parameters ? 2 : 0) + (apart ? 4 : 0);
  return state_pieces
      .find({tensors(plan).number, packed(dtypes_number(plan), 8 * plan.zero + switches),
             std::bit_cast<std::int64_t>(plan.offload.optimizer),
             is_wide                      ? packed(block(plan).number, layout(plan).number)
             : gathers_by_unit(job, plan) ? packed(grid().dp, plan.cp)
                                          : 0},
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

// Ranks between the ends are alike, but where their layers tell, and where a tied head is not on
// the last rank.
const OutsidePiece& PricePieces::outside(const Plan& plan) {
  const SeenByOutside seen = seen_by_outside(job, plan);
  const std::int64_t head = head_stage(job, plan);
  return outside_pieces
      .find({packed(grid_piece->number, seen.chunks),
             packed(plan.zero, 4 * number(plan.schedule) + number(plan.cp_method)),
             seen.layers || head < plan.pp - 1 ? split_piece->number : 0,
             packed(seen.microbatch, number(plan.precision))},
            [&](OutsidePiece& piece) {
              piece = {};
              piece.first = outside_bytes(job, plan, 0);
              piece.last = outside_bytes(job, plan, plan.pp - 1);
              piece.head = outside_bytes(job, plan, head);
              piece.head_rank = head;
              const std::int64_t end = seen.layers || head < plan.pp - 1
                                           ? plan.pp - 1
                                           : std::min<std::int64_t>(plan.pp - 1, 2);
              for (std::int64_t rank = 1; rank < end; ++rank) {
                if (rank != head) {
                  piece.between = std::max(piece.between, outside_bytes(job, plan, rank));
                }
              }
            })
      .value;
}

}  // namespace shardplan
