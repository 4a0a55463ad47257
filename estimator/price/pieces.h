// What a price is put together from, each piece by the few axes of a plan that it depends on:
//   grid        tp, cp, ep, etp, pp, dp, dp_replicate, rank_order: groups of ranks
//   split       pp, vpp, layers of the chunks, placement: classes of stages that hold the same
//   kind        sizes of a microbatch, precision, what it sees of recompute: bytes of one kind of
//               block
//   block       all kinds of blocks of a plan
//   layout      split and full recompute: chunks of the stages as runs of blocks
//   load        which chunks of a layout are equal, and schedule: what the ranks that can have the
//               peak hold at once
//   activations load, layout and block: bytes of those ranks
//   tensors     split, shards: parameters of the classes
//   state       tensors, zero, dtypes, offload: bytes of the classes between steps
//   times       block and links: seconds of the kinds of layers
//   chunk work  times, layout and links of the pipeline: seconds of the kinds of chunks and ranks
//   work        chunk work, recompute and schedule: the pipeline
//   reduction   split, grid, dtypes: what the kinds of ranks communicate after the pipeline
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "estimator/answer/pipeline_step.h"
#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/stage_peak.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/unit_peak.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/price/freedom.h"
#include "estimator/price/memory_floor.h"
#include "estimator/time/memo.h"
#include "estimator/time/product_memo.h"
#include "estimator/validity/validity.h"

namespace shardplan {

struct GridPiece {
  std::int64_t dp = 1;
  std::int64_t dense_shard = 1;
  std::int64_t expert_shard = 1;
  GroupShape pp;
  std::int64_t links = 0;  // number of how the groups of tp, cp, ep and etp lie on links
  std::int64_t pp_links = 0;
  ShardingGroups groups;
};

// Ranks of a class hold the same layers and ends of the model, and stand alike at the ends of the
// pipeline.
struct SplitPiece {
  LayerPartition partition;
  std::vector<std::int64_t> firsts;  // of every class the first rank
  std::vector<std::int64_t> of_rank;
  std::vector<StageEnds> ends;  // by class
  StepLayout steps;
};

struct KindPiece {
  BlockSummary summary;
  UnitBytes unit;  // the block by itself
};

using BlockKey = PieceKey<6>;
struct BlockPiece {
  std::array<UnitBytes, kNumBlockKinds> units;  // every block by itself: of the job's kinds in turn
};
using BlockMemo = PieceMemo<BlockPiece, 6>;
struct WideAxes {};  // axes that have a number and nothing else

// Equal units in a row, by number: a block by itself has its kind's place among those of the job.
struct NumberedUnit {
  std::size_t unit = 0;
  std::int64_t count = 1;
};
// A chunk as numbers of its distinct units, and the places of units that can decide its peaks: the
// last one of every unit, in their order, then others.
struct NumberedChunk {
  ChunkLayout layout;
  std::vector<std::size_t> units = {};
  std::vector<std::int64_t> counts = {};  // by unit
  std::vector<std::size_t> places = {};   // indices into `units`
  std::vector<std::int64_t> before = {};  // by place and unit: how many of it are in front
};

struct LayoutPiece {
  std::vector<StageLayout> classes;
  std::vector<std::size_t> chunks;                 // distinct ones: numbers of layouts
  std::vector<std::vector<std::size_t>> of_class;  // by class and local chunk: index into chunks
  std::vector<std::size_t> units;                  // distinct ones of all chunks
  std::vector<std::size_t> chunk_units;            // of one chunk after another: index into units
  std::int64_t pattern = 0;                        // number of what of_class says
};

// Of ChunkPeaks what a sum over a schedule needs.
struct ChunkBytes {
  std::int64_t kept = 0;
  std::int64_t pending = 0;
  std::int64_t gradient = 0;
  std::int64_t forward = -1;  // -1: no such point
  std::int64_t backward = -1;
  std::int64_t first_backward = -1;      // makes the gradients
  std::int64_t gathering_backward = -1;  // finds them, but not the parameters
  std::int64_t weight = -1;
  std::int64_t reduction = -1;
  std::int64_t gathered = 0;
  std::int64_t reduced = 0;
  ArenaSizes arena;
};

// A state of the schedule on a rank that can have the peak.
struct LoadState {
  std::size_t running = 0;                    // chunk: index of the layout's
  std::int64_t ChunkBytes::*bytes = nullptr;  // of it
};
struct RankLoad {
  std::int64_t rank = 0;
  std::size_t stage_class = 0;
  std::array<std::int64_t, 3> slots{};  // of a static arena's rings
  std::vector<std::size_t> chunks;      // distinct ones of the class: indices of the layout's
  std::vector<LoadState> states;        // forwards first
  std::size_t num_forwards = 0;
  std::vector<std::int64_t> saved;  // by state and chunk
  // By state and chunk: pending, with gradients, gathered, reduced. None: empty.
  std::vector<std::array<std::int64_t, 4>> left;
};
struct LoadPiece {
  std::vector<RankLoad> ranks;
};

// Of one rank that can have the peak.
struct RankActivations {
  std::int64_t rank = 0;
  std::size_t stage_class = 0;
  ActionBytes actions;
  const StateBytes* buffers = nullptr;  // of the size of a microbatch
};
struct ActivationPiece {
  std::vector<RankActivations> ranks;
};

struct TensorPiece {
  std::vector<StageTensors> classes;
};

struct StatePiece {
  std::vector<StateBytes> classes;
};

// Without recomputation.
struct ChunkWorkPiece {
  std::vector<PlainChunkTime> chunks;  // by chunk kind
  std::vector<RankWork> ranks;         // by rank kind
  double busiest_s = 0;                // compute of the busiest rank
};

struct WorkPiece {
  PipelineStep step;
  double pipeline_s = 0;
  double busiest_s = 0;  // compute of the busiest rank on one microbatch, without recomputation
};

// Of every kind of rank what it reduces and gathers, and the parameters that it updates.
struct ReductionPiece {
  std::vector<RankUpdate> ranks;  // without the optimizer, which more axes change
  std::vector<RankParameters> held;
};

// Beside the allocator, by place in the pipeline.
struct OutsidePiece {
  std::int64_t first = 0;
  std::int64_t between = 0;  // the most of any
  std::int64_t last = 0;
  std::int64_t head = 0;  // of the rank that holds the head
  std::int64_t head_rank = 0;
};

// Least bytes of three ranks (both ends of the pipeline, the first between them) by phase.
using StateFloor = std::array<std::array<std::int64_t, kNumPhases>, 3>;

struct PricePieces {
  explicit PricePieces(const Job& of_job);

  // Before the pieces of a plan: what all of them share, until a plan with other groups, another
  // split or another microbatch begins. Needs groups that divide the ranks.
  void begin(const Plan& plan);
  ScheduleShape shape(const Plan& plan) const;
  // Memory. A plan's pieces are good until another plan's are asked for.
  const ActivationPiece& activations(const Plan& plan, const ScheduleShape& shape);
  const std::vector<StateBytes>& sequences(const Plan& plan, const ScheduleShape& shape);
  const StatePiece& state(const Plan& plan);
  const PieceMemo<TensorPiece, 4>::Piece& tensors(const Plan& plan);
  const OutsidePiece& outside(const Plan& plan);
  // Time.
  const WorkPiece& work(const Plan& plan, const ScheduleShape& shape);
  const std::vector<RankParameters>& parameters(const Plan& plan);
  const PieceMemo<ReductionPiece, 3>::Piece& reductions(const Plan& plan);
  const std::vector<RankUpdate>& updates(const Plan& plan);

  Job job;
  LayerKinds layer_kinds;
  std::vector<BlockKind> block_kinds;  // that plans of the job can have
  bool is_wide = false;                // a profile whose blocks and state see axes of all kinds
  // Rules that look at nothing but the grid and the split, and those that look at the schedule and
  // the sizes of a microbatch as well.
  std::vector<const ValidityRule*> split_rules;
  std::vector<const ValidityRule*> block_rules;
  std::vector<PriceFreedom> freedoms;
  // By freedom: the first one with the same values on the axes of the state and its update.
  std::vector<std::size_t> state_freedoms;
  PieceMemo<StateFloor, 8> state_floors{1024};
  PieceMemo<double, 8> update_floors{1024};

  BlockKey block_key(const Plan& plan);
  const SplitPiece& split() const { return split_piece->value; }
  const GridPiece& grid() const { return grid_piece->value; }
  PieceKey<2> layout_key(const Plan& plan) const;
  const KindPiece& kind(const Plan& plan, BlockKind kind);
  const BlockMemo::Piece& block(const Plan& plan);
  BlockSummaries summaries(const Plan& plan);
  const PieceMemo<LayoutPiece, 3>::Piece& layout(const Plan& plan);
  const LoadPiece& load(const ScheduleShape& shape, const LayoutPiece& stages);
  std::int64_t shardings(const Plan& plan) const;  // per microbatch, as a key has them
  const PieceMemo<ModelTimes, 7>::Piece& times(const Plan& plan);
  const PieceMemo<ChunkWorkPiece, 3>::Piece& chunk_work(
      const Plan& plan, const PieceMemo<ModelTimes, 7>::Piece& known);
  void build_work(const Plan& plan, const ScheduleShape& shape,
                  const PieceMemo<ModelTimes, 7>::Piece& known, const ChunkWorkPiece& plain,
                  WorkPiece& piece);
  std::size_t number_chunk(const ChunkLayout& chunk);
  const UnitBytes& unit(const Plan& plan, const BlockMemo::Piece& block, std::size_t number) {
    return number < kNumBlockKinds ? block.value.units[number] : group(plan, block, number);
  }
  const UnitBytes& group(const Plan& plan, const BlockMemo::Piece& block, std::size_t number);
  const FsdpBuffers& buffers(const Plan& plan, std::size_t layout);
  void find_chunks(const Plan& plan, const BlockMemo::Piece& block, const LayoutPiece& stages);
  void sum_chunks(const Plan& plan, const BlockMemo::Piece& block, const LayoutPiece& stages);
  void build_grid(const Plan& plan, GridPiece& piece);
  void build_split(const Plan& plan, SplitPiece& piece);
  void build_layout(const Plan& plan, LayoutPiece& layout);
  void build_load(const ScheduleShape& shape, const LayoutPiece& stages, LoadPiece& load);
  void build_activations(const Plan& plan, const ScheduleShape& shape);

  std::map<std::vector<std::int64_t>, std::int64_t> split_numbers;
  std::vector<std::int64_t> layers_per_chunk;  // whose number is known
  std::int64_t split_number = 0;               // 0: even
  std::int64_t recompute = 0;                  // its recompute_number
  Plan begun;                                  // the plan at hand, but for how its state is kept
  const PieceMemo<GridPiece, 4>::Piece* grid_piece = nullptr;
  const PieceMemo<SplitPiece, 2>::Piece* split_piece = nullptr;
  BlockKey block_axes{};                           // its block_key
  PieceKey<3> stage_axes{};                        // what else its chunks depend on
  std::int64_t microbatch_number = 0;              // changes with them
  std::vector<std::array<std::int64_t, 8>> links;  // of groups, by number
  std::vector<NumberedChunk> chunk_layouts;        // by number
  std::map<std::vector<std::vector<std::size_t>>, std::int64_t> patterns;  // numbers
  std::vector<Unit> groups;  // units of several blocks, or recomputed ones
  // The pieces asked for last, for plans that share them.
  PieceKey<2> activation_key{};
  ActivationPiece last_activations;
  PieceKey<8> sequence_key{};
  std::vector<StateBytes> last_sequences;  // by class: buffers of the size of a microbatch
  PieceKey<6> last_work_key{};
  const WorkPiece* last_work = nullptr;
  PieceKey<2> last_tensor_key{};
  const PieceMemo<TensorPiece, 4>::Piece* last_tensors = nullptr;
  // Room for what building a piece needs.
  std::vector<UnitBytes> unit_space;
  std::vector<ChunkBytes> chunk_byte_space;
  std::vector<std::int64_t> kept_space;
  std::vector<ChunkTime> chunk_time_space;
  std::vector<ChunkWork> work_space;
  std::vector<ChunkWork> rank_work_space;
  std::vector<ReplaySeconds> replay_space;
  std::vector<ReplaySeconds> rank_replay_space;
  ModelTimes model_time_space;  // of the times of this number
  std::int64_t model_time_number = 0;
  PieceMemo<GridPiece, 4> grid_pieces{1024};
  PieceMemo<std::vector<RankOrder>, 4> order_pieces{1024};  // see floor.cpp
  PieceMemo<SplitPiece, 2> split_pieces{1024};
  PieceMemo<KindPiece, 6> kind_pieces{16384};
  PieceMemo<WideAxes, 4> wide_axes{4096};
  BlockMemo block_pieces{8192};
  PieceMemo<UnitBytes, 2> group_pieces{4096};
  PieceMemo<LayoutPiece, 3> layout_pieces{1024};
  PieceMemo<LoadPiece, 4> load_pieces{2048};
  PieceMemo<ChunkBytes, 2> chunk_pieces{16384};
  PieceMemo<FsdpBuffers, 4> buffer_pieces{4096};
  PieceMemo<StateBytes, 8> sequence_pieces{4096};
  PieceMemo<TensorPiece, 4> tensor_pieces{4096};
  PieceMemo<StatePiece, 4> state_pieces{32768};
  PieceMemo<OutsidePiece, 4> outside_pieces{1024};
  ProductMemo products;
  PieceMemo<ModelTimes, 7> times_pieces{4096};
  PieceMemo<ChunkWorkPiece, 3> chunk_work_pieces{1024};
  PieceMemo<WorkPiece, 4> work_pieces{128};
  PieceMemo<std::vector<RankParameters>, 3> parameter_pieces{1024};
  PieceMemo<ReductionPiece, 3> reduction_pieces{1024};
  PieceMemo<std::vector<RankUpdate>, 3> update_pieces{1024};
};

// The step of a plan whose pieces have begun.
StepTime price_time(PricePieces& pieces, const Plan& plan, const ScheduleShape& shape);

// Place of a number in a list, which gets it if it is not there.
std::size_t index_in(std::vector<std::size_t>& numbers, std::size_t number);

// Integers for names of a plan, as keys have them.
std::int64_t recompute_number(const Recompute& recompute);
// Of a microbatch: sizes and switches that rows of blocks see.
std::int64_t microbatch_axes_number(const Plan& plan, CpMethod cp_method, Schedule schedule);
std::int64_t dtypes_number(const Plan& plan);

}  // namespace shardplan
