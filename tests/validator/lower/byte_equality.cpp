#include "tests/validator/lower/byte_equality.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "estimator/plan/in_flight.h"

namespace shardplan {
namespace {

std::string key_of(std::string_view name, Component component) {
  return std::string(name) + " [" + std::string(name_of(component)) + "]";
}

// One block of a chunk, layers one by one.
struct FlatBlock {
  BlockKind kind = BlockKind::kDenseLayer;
  bool is_recomputed = false;
  ChunkPoint point;  // without its step
};

std::vector<FlatBlock> flatten(const ChunkLayout& chunk) {
  std::vector<FlatBlock> blocks;
  for (std::size_t u = 0; u < chunk.units.size(); ++u) {
    const Unit& unit = chunk.units[u];
    for (std::int64_t before = 0; before < unit.count; ++before) {
      for (std::size_t run = 0; run < unit.blocks.size(); ++run) {
        for (std::int64_t i = 0; i < unit.blocks[run].count; ++i) {
          blocks.push_back(
              {.kind = unit.blocks[run].kind,
               .is_recomputed = unit.checkpointed,
               .point = {.unit = u, .units_before = before, .block = run, .blocks_before = i}});
        }
      }
    }
  }
  return blocks;
}

bool is_layer(BlockKind kind) {
  return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer;
}

// Bytes by the number of a name.
using Bytes = std::vector<std::int64_t>;

// Numbers names as they come.
class Names {
 public:
  std::size_t number(const std::string& key) {
    const auto [entry, is_new] = numbers_.try_emplace(key, keys_.size());
    if (is_new) {
      keys_.push_back(key);
    }
    return entry->second;
  }
  const std::string& operator[](std::size_t number) const { return keys_[number]; }

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> keys_;
};

void add(Bytes& bytes, std::size_t number, std::int64_t more) {
  bytes.resize(std::max(bytes.size(), number + 1), 0);
  bytes[number] += more;
}

// The step at which an operation runs.
struct Instant {
  MomentKind moment = MomentKind::kForward;
  std::int64_t block = 0;
  Step step = Step::kForwardInput;
  bool enters = false;
  bool is_early = false;  // before what begins at the step
  bool is_late = false;   // behind what ends there
  friend auto operator<=>(const Instant&, const Instant&) = default;
};

// Walks a program along the actions of its stage.
class Walk {
 public:
  Walk(const Job& job, const Plan& plan, const PlanPieces& pieces, const Program& program)
      : program_(program),
        blocks_(pieces.blocks),
        stage_(pieces.stages[static_cast<std::size_t>(coordinates_of(job, plan, program.rank).pp)]),
        actions_(schedule_actions(schedule_shape(job, plan), stage_.layout.pp_rank)),
        partition_(partition_layers(job, plan)) {
    const std::size_t num_chunks = stage_.layout.chunks.size();
    in_flight_.saved.assign(num_chunks, 0);
    in_flight_.pending_weight.assign(num_chunks, 0);
    in_flight_.has_gradients.assign(num_chunks, 0);
    for (std::size_t c = 0; c < num_chunks; ++c) {
      flat_.push_back(flatten(stage_.layout.chunks[c]));
      const std::int64_t position =
          position_of_chunk(plan, stage_.layout.pp_rank, static_cast<std::int64_t>(c));
      first_layers_.push_back(partition_.chunks[static_cast<std::size_t>(position)].first_layer);
    }
    const auto number = [&](const auto& row) {
      return names_.number(key_of(row.name, row.component));
    };
    std::ranges::transform(program.tensors, std::back_inserter(numbers_), number);
    std::ranges::transform(stage_.state.rows, std::back_inserter(state_numbers_), number);
    for (std::size_t kind = 0; kind < blocks_.size(); ++kind) {
      std::ranges::transform(blocks_[kind].rows, std::back_inserter(block_numbers_.emplace_back()),
                             number);
    }
    for (const Operation& op : program.operations) {
      labels_.push_back(label_names_.number(op.label));
    }
  }

  std::optional<std::string> run() {
    if (program_.cuts.size() != actions_.size() + 1) {
      return "rank " + std::to_string(program_.rank) + ": " +
             std::to_string(program_.cuts.size() - 1) + " actions in the program, " +
             std::to_string(actions_.size()) + " in the schedule";
    }
    sort_lifetimes();
    for (std::size_t a = 0; a < program_.cuts.size(); ++a) {
      const std::int64_t begin = program_.cuts[a].operation;
      const std::int64_t end = a + 1 < program_.cuts.size() ? program_.cuts[a + 1].operation
                                                            : std::ssize(program_.operations);
      if (auto found = action(a, begin, end)) {
        return found;
      }
    }
    return totals();
  }

 private:
  void sort_lifetimes() {
    born_.resize(program_.operations.size());
    dies_.resize(program_.operations.size());
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      born_[static_cast<std::size_t>(program_.tensors[i].born)].push_back(i);
      dies_[static_cast<std::size_t>(program_.tensors[i].dies)].push_back(i);
    }
  }

  // The microbatch that runs is counted in neither.
  void begin(const ScheduleAction& now) {
    in_flight_.action = now.kind;
    in_flight_.chunk = now.chunk;
    const std::size_t chunk = static_cast<std::size_t>(now.chunk);
    if (now.kind == ActionKind::kBackward || now.kind == ActionKind::kBackwardInput) {
      in_flight_.saved[chunk] -= 1;
    }
    if (now.kind == ActionKind::kBackwardWeight) {
      in_flight_.pending_weight[chunk] -= 1;
    }
    expected_.clear();
  }
  void end(const ScheduleAction& now) {
    const std::size_t chunk = static_cast<std::size_t>(now.chunk);
    in_flight_.saved[chunk] += now.kind == ActionKind::kForward ? 1 : 0;
    in_flight_.pending_weight[chunk] += now.kind == ActionKind::kBackwardInput ? 1 : 0;
  }

  // Where a window hides the last hops of a ring from this rank, keys and gradients pass between
  // its last block and the rounding of the sums.
  void find_passing(std::int64_t first, std::int64_t last) {
    std::int64_t block = -1;
    std::int64_t shift = -1;
    for (std::int64_t i = first; i < last; ++i) {
      const Operation& op = program_.operations[static_cast<std::size_t>(i)];
      if (op.kind == OpKind::kRingShift) {
        shift = i;
      } else if (op.label.ends_with(".attention.block")) {
        block = i;
      } else if (op.label.ends_with(".rounded") && block >= 0) {
        for (std::int64_t passing = block + 1; shift > block && passing < i; ++passing) {
          block_before_[passing] = block;
        }
        block = -1;
      }
    }
  }

  std::optional<std::string> action(std::size_t index, std::int64_t first, std::int64_t last) {
    const bool is_update = index == actions_.size();
    if (!is_update) {
      begin(actions_[index]);
    }
    using Run = std::pair<std::size_t, std::int64_t>;  // a label within a layer
    const auto run_of = [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      return Run(labels_[at], program_.operations[at].layer);
    };
    std::map<Run, std::int64_t> total;
    std::map<Run, std::int64_t> done;
    for (std::int64_t i = first; i < last; ++i) { total[run_of(i)] += 1; }
    find_passing(first, last);
    for (std::int64_t i = first; i < last; ++i) {
      const Run run = run_of(i);
      const std::int64_t before = done[run]++;
      if (auto found = operation(i, before, total[run])) {
        return found;
      }
    }
    if (!is_update) {
      end(actions_[index]);
    }
    return std::nullopt;
  }

  // The block of an operation; -1 where it has none.
  std::int64_t block_of(const Operation& op, Where where) const {
    const std::size_t chunk = static_cast<std::size_t>(in_flight_.chunk);
    const std::vector<FlatBlock>& blocks = flat_[chunk];
    const std::int64_t first_layer = is_layer(blocks.front().kind) ? 0 : 1;
    const std::int64_t layer = op.layer - first_layers_[chunk] + first_layer;
    switch (where) {
      case Where::kFirstBlock: return 0;
      case Where::kLayer: return op.layer < 0 ? -1 : layer;
      case Where::kLayerBefore: return op.layer < 0 ? -1 : layer - 1;
      case Where::kBehindLayers: return std::ssize(blocks) - 1;
      case Where::kNoBlock: break;
    }
    return -1;
  }

  bool is_recomputed(const Operation& op) const {
    const std::int64_t block = block_of(op, Where::kLayer);
    const std::vector<FlatBlock>& blocks = flat_[static_cast<std::size_t>(in_flight_.chunk)];
    return op.chunk == in_flight_.chunk && block >= 0 && block < std::ssize(blocks) &&
           blocks[static_cast<std::size_t>(block)].is_recomputed;
  }

  // Gathers and reductions of units stand anywhere between the operations of blocks: they must find
  // the state, which holds the units' cells, and change nothing else.
  static bool runs_beside(const Operation& op) {
    return op.stream == Stream::kData && !op.label.starts_with("reduce.") &&
           !op.label.starts_with("update.");
  }

  std::optional<std::string> beside(std::int64_t i) {
    for (const std::size_t t : born_[static_cast<std::size_t>(i)]) {
      add(alive_, numbers_[t], program_.tensors[t].bytes);
    }
    Bytes state;
    add_state(state, Phase::kForward);
    for (std::size_t n = 0; n < state.size(); ++n) {
      if (state[n] != 0 && (n >= alive_.size() || alive_[n] != state[n])) {
        return place_of(program_, i) + " beside the blocks: " + names_[n] + ": program " +
               std::to_string(n < alive_.size() ? alive_[n] : 0) + " bytes, estimate " +
               std::to_string(state[n]);
      }
    }
    for (const auto* touched :
         {&born_[static_cast<std::size_t>(i)], &dies_[static_cast<std::size_t>(i)]}) {
      for (const std::size_t t : *touched) {
        if (numbers_[t] >= state.size() || state[numbers_[t]] == 0) {
          return place_of(program_, i) + " beside the blocks begins or ends the life of " +
                 names_[numbers_[t]];
        }
      }
    }
    for (const std::size_t t : dies_[static_cast<std::size_t>(i)]) {
      add(alive_, numbers_[t], -program_.tensors[t].bytes);
    }
    return std::nullopt;
  }

  std::optional<std::string> operation(std::int64_t i, std::int64_t before, std::int64_t total) {
    const Operation& op = program_.operations[static_cast<std::size_t>(i)];
    if (runs_beside(op)) {
      return beside(i);
    }
    const auto passing = block_before_.find(i);
    const bool passes = passing != block_before_.end();
    const Operation& stepping =
        passes ? program_.operations[static_cast<std::size_t>(passing->second)] : op;
    const OperationStep* row = step_of(stepping, is_recomputed(op));
    if (row == nullptr) {
      return place_of(program_, i) + ": belongs to no step";
    }
    for (const std::size_t t : born_[static_cast<std::size_t>(i)]) {
      add(alive_, numbers_[t], program_.tensors[t].bytes);
    }
    std::string where;
    const Bytes* expected = nullptr;
    if (row->where == Where::kNoBlock) {
      where = name_of(row->state);
      between_ = between_actions(row->state);
      expected = &between_;
    } else {
      Instant now{.moment = moment_of(op),
                  .block = block_of(op, row->where),
                  .step = row->step,
                  .enters = row->enters,
                  .is_early = row->begins_early && before == 0,
                  .is_late = row->ends_late && before + 1 == total};
      if (row->steps && total > 1) {
        now.step = (*row->steps)[before == 0 ? 0 : before + 1 == total ? 2 : 1];
      }
      const std::vector<FlatBlock>& blocks = flat_[static_cast<std::size_t>(in_flight_.chunk)];
      if (now.block < 0 || now.block >= std::ssize(blocks) ||
          (now.enters && now.block + 1 >= std::ssize(blocks))) {
        return place_of(program_, i) + ": no such block in the estimate";
      }
      where = std::string(name_of(now.step)) + " of block " + std::to_string(now.block);
      const auto [entry, is_new] = expected_.try_emplace(now);
      if (is_new) {
        entry->second = between_steps(now);
      }
      expected = &entry->second;
    }
    if (auto found = passes ? compare(i, *expected, where, std::greater<>())
                            : compare(i, *expected, where, std::not_equal_to<>())) {
      return found;
    }
    for (const std::size_t t : dies_[static_cast<std::size_t>(i)]) {
      add(alive_, numbers_[t], -program_.tensors[t].bytes);
    }
    return std::nullopt;
  }

  static MomentKind moment_of(const Operation& op) {
    const bool is_backward = op.label.starts_with("backward.");
    const bool is_forward = op.label.starts_with("forward.");
    if (op.label.starts_with("weight.")) {
      return MomentKind::kWeight;
    }
    return is_forward    ? MomentKind::kForward
           : is_backward ? MomentKind::kBackward
                         : MomentKind::kReplay;
  }

  void add_state(Bytes& bytes, Phase phase) const {
    for (std::size_t r = 0; r < state_numbers_.size(); ++r) {
      const StateRow& row = stage_.state.rows[r];
      if (row.is_alive(phase)) {
        add(bytes, state_numbers_[r], row.total_bytes());
      }
    }
  }

  void add_blocks(Bytes& bytes, const std::vector<AliveBlocks>& alive) const {
    for (const AliveBlocks& some : alive) {
      const auto kind = static_cast<std::size_t>(some.kind);
      for (std::size_t r = 0; r < block_numbers_[kind].size(); ++r) {
        const BlockRow& row = blocks_[kind].rows[r];
        if (is_alive(row, some.state, some.step)) {
          add(bytes, block_numbers_[kind][r], some.copies * row.bytes);
        }
      }
    }
  }

  Bytes at(const Instant& now) const {
    const std::vector<FlatBlock>& blocks = flat_[static_cast<std::size_t>(in_flight_.chunk)];
    const FlatBlock& block = blocks[static_cast<std::size_t>(now.block)];
    ChunkPoint point = block.point;
    point.step = now.step;
    if (now.enters) {
      point.entered = blocks[static_cast<std::size_t>(now.block) + 1].kind;
    }
    // In forward of a layer nothing of a replay; a layer that is not recomputed as a group writes
    // again within its backward steps.
    const bool is_replay = now.moment == MomentKind::kReplay && block.is_recomputed;
    const bool stays = now.moment == MomentKind::kForward || now.moment == MomentKind::kWeight;
    const MomentKind moment = stays       ? now.moment
                              : is_replay ? MomentKind::kReplay
                                          : MomentKind::kBackward;
    Bytes bytes;
    add_state(bytes, phase_of(moment));
    add_blocks(bytes, alive_blocks(stage_.layout, in_flight_, moment, point));
    return bytes;
  }

  // Beside a step: what is alive there and at the step next to it.
  Bytes between_steps(const Instant& now) const {
    Bytes bytes = at(now);
    const auto leave_what_is_alive = [&](int distance) {
      Instant next = now;
      next.step = static_cast<Step>(static_cast<int>(now.step) + distance);
      next.enters = false;
      const Bytes there = at(next);
      bytes.resize(std::min(bytes.size(), there.size()));
      for (std::size_t n = 0; n < bytes.size(); ++n) { bytes[n] = std::min(bytes[n], there[n]); }
    };
    if (now.is_early) {
      leave_what_is_alive(-1);
    }
    if (now.is_late) {
      leave_what_is_alive(1);
    }
    return bytes;
  }

  // Nothing runs: what is in flight stays.
  Bytes between_actions(Phase phase) const {
    Bytes bytes;
    add_state(bytes, phase);
    for (std::size_t chunk = 0; chunk < flat_.size(); ++chunk) {
      for (const FlatBlock& block : flat_[chunk]) {
        const bool is_input_only = block.is_recomputed;
        const bool is_first = block.point.block == 0 && block.point.blocks_before == 0;
        if (!is_input_only || is_first) {
          add_blocks(bytes,
                     {{.kind = block.kind,
                       .state = is_input_only ? BlockState::kCheckpointed : BlockState::kKept,
                       .copies = in_flight_.saved[chunk]}});
        }
        add_blocks(bytes, {{.kind = block.kind,
                            .state = BlockState::kPending,
                            .copies = in_flight_.pending_weight[chunk]}});
      }
    }
    return bytes;
  }

  template <class IsDifferent>
  std::optional<std::string> compare(std::int64_t i, const Bytes& expected,
                                     const std::string& where,
                                     const IsDifferent& is_different) const {
    const auto of = [](const Bytes& bytes, std::size_t n) {
      return n < bytes.size() ? bytes[n] : 0;
    };
    for (std::size_t n = 0; n < std::max(alive_.size(), expected.size()); ++n) {
      if (is_different(of(alive_, n), of(expected, n))) {
        return place_of(program_, i) + " at " + where + ": " + names_[n] + ": program " +
               std::to_string(of(alive_, n)) + " bytes, estimate " +
               std::to_string(of(expected, n));
      }
    }
    return std::nullopt;
  }

  // One past the last byte of the arena that a tensor lies on.
  std::int64_t end_of(Arena arena) const {
    std::int64_t end = 0;
    for (const Tensor& tensor : program_.tensors) {
      end = std::max(end, tensor.arena == arena ? tensor.offset + tensor.bytes : 0);
    }
    return end;
  }

  // The first byte of the dynamic arena where a tensor of this kind lies.
  std::int64_t begin_of(Placement placement) const {
    std::int64_t begin = program_.dynamic_bytes;
    for (const Tensor& tensor : program_.tensors) {
      const bool counts = tensor.arena == Arena::kDynamic && tensor.placement == placement;
      begin = std::min(begin, counts ? tensor.offset : begin);
    }
    return begin;
  }

  std::optional<std::string> totals() const {
    const auto differ = [&](const std::string& what, std::int64_t program, std::int64_t estimate) {
      return "rank " + std::to_string(program_.rank) + ": " + what + ": program " +
             std::to_string(program) + " bytes, estimate " + std::to_string(estimate);
    };
    const StagePeaks& peaks = stage_.peaks;
    const std::int64_t peak = std::ranges::max(live_bytes(program_));
    if (peak != peaks.peak_bytes) {
      return differ("peak", peak, peaks.peak_bytes);
    }
    const std::int64_t slots_end = peaks.fixed_bytes + peaks.slots_bytes;
    const struct {
      std::string what;
      std::int64_t program;
      std::int64_t estimate;
    } sizes[] = {
        {"end of the persistent tensors", end_of(Arena::kPersistent),
         stage_.state.bytes.alive[static_cast<std::size_t>(Phase::kIdle)]},
        {"begin of the slots", begin_of(Placement::kSlot), peaks.fixed_bytes},
        {"begin of the frame", begin_of(Placement::kFrame), slots_end},
        {"end of the frame", end_of(Arena::kDynamic), slots_end + peaks.frame_bytes},
        {"persistent arena", program_.persistent_bytes, peaks.persistent_arena_bytes},
        {"dynamic arena", program_.dynamic_bytes, peaks.dynamic_arena_bytes},
    };
    for (const auto& size : sizes) {
      if (size.program != size.estimate) {
        return differ(size.what, size.program, size.estimate);
      }
    }
    return std::nullopt;
  }

  const Program& program_;
  const BlockSet& blocks_;
  const StagePieces& stage_;
  std::vector<ScheduleAction> actions_;
  LayerPartition partition_;
  std::vector<std::vector<FlatBlock>> flat_;  // by local chunk
  std::vector<std::int64_t> first_layers_;
  InFlightState in_flight_;
  Names names_;
  std::vector<std::size_t> numbers_;                     // by tensor
  std::vector<std::size_t> state_numbers_;               // by row
  std::vector<std::vector<std::size_t>> block_numbers_;  // by kind and row
  Names label_names_;
  std::vector<std::size_t> labels_;             // by operation
  std::vector<std::vector<std::size_t>> born_;  // by operation: tensors
  std::vector<std::vector<std::size_t>> dies_;
  Bytes alive_;
  std::map<Instant, Bytes> expected_;                  // of the running action
  std::map<std::int64_t, std::int64_t> block_before_;  // by operation that passes keys on
  Bytes between_;
};

}  // namespace

std::optional<std::string> ByteEquality::difference(const Program& program) const {
  return Walk(job_, plan_, pieces_, program).run();
}

}  // namespace shardplan
