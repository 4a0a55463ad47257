#include "estimator/stage_timeline.h"

#include <algorithm>

#include "estimator/schedule.h"
#include "estimator/stage_tensors.h"

namespace shardplan {
namespace {

// One allocation or free of a row of a block, by the row's index.
struct RowEvent {
  std::int64_t row = 0;
  bool allocates = false;
};

// What one kind of block does in forward, in a forward that keeps nothing, in backward, and in its
// weight gradient: at each step the rows born are allocated, then the rows that die are freed.
struct BlockScript {
  std::vector<std::int64_t> bytes;  // by row
  std::vector<RowEvent> forward;
  std::vector<RowEvent> forward_unkept;
  std::vector<RowEvent> backward;
  std::vector<RowEvent> weight;
  std::int64_t input_row = -1;            // stays with a recomputed group
  std::int64_t output_gradient_row = -1;  // is there while a group replays
};

std::vector<RowEvent> script_between(const std::vector<BlockRow>& rows, Step first, Step last,
                                     Step BlockRow::*dies) {
  std::vector<RowEvent> script;
  for (int step = static_cast<int>(first); step <= static_cast<int>(last); ++step) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].born == static_cast<Step>(step)) {
        script.push_back({.row = static_cast<std::int64_t>(i), .allocates = true});
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].*dies == static_cast<Step>(step)) {
        script.push_back({.row = static_cast<std::int64_t>(i), .allocates = false});
      }
    }
  }
  return script;
}

BlockScript script_of(const BlockMemory& block) {
  BlockScript script;
  for (std::size_t i = 0; i < block.rows.size(); ++i) {
    const BlockRow& row = block.rows[i];
    script.bytes.push_back(row.bytes);
    const std::int64_t index = static_cast<std::int64_t>(i);
    script.input_row =
        is_alive(row, BlockState::kCheckpointed, row.born) ? index : script.input_row;
    script.output_gradient_row =
        is_alive(row, BlockState::kReplaying, row.born) ? index : script.output_gradient_row;
  }
  script.forward = script_between(block.rows, Step::kForwardInput, kLastForward, &BlockRow::dies);
  script.forward_unkept =
      script_between(block.rows, Step::kForwardInput, kLastForward, &BlockRow::last_forward_use);
  script.backward = script_between(block.rows, kFirstBackward, kLastBackward, &BlockRow::dies);
  script.weight = script_between(block.rows, Step::kWeight, Step::kWeight, &BlockRow::dies);
  return script;
}

// Tensors of one block of one microbatch, by row; 0: not allocated.
using BlockTensors = std::vector<std::int64_t>;

class TimelineWriter {
 public:
  explicit TimelineWriter(const BlockSet& blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) { scripts_[i] = script_of(blocks[i]); }
  }

  const BlockScript& script(BlockKind kind) const {
    return scripts_[static_cast<std::size_t>(kind)];
  }
  std::int64_t allocate(std::int64_t bytes) {
    ++last_id_;
    events.push_back({.id = last_id_, .bytes = bytes});
    return last_id_;
  }
  void free(std::int64_t& id) {
    if (id != 0) {
      events.push_back({.id = id, .bytes = 0});
      id = 0;
    }
  }
  // Rows that are already there stay; `kept_row` is not freed.
  void run(BlockKind kind, const std::vector<RowEvent>& part, BlockTensors& tensors,
           std::int64_t kept_row = -1) {
    const BlockScript& rows = script(kind);
    tensors.resize(rows.bytes.size(), 0);
    for (const RowEvent& event : part) {
      const std::size_t row = static_cast<std::size_t>(event.row);
      if (event.allocates && tensors[row] == 0) {
        tensors[row] = allocate(rows.bytes[row]);
      }
      if (!event.allocates && event.row != kept_row) {
        free(tensors[row]);
      }
    }
  }

  std::vector<AllocationEvent> events;

 private:
  std::array<BlockScript, kNumBlockKinds> scripts_;
  std::int64_t last_id_ = 0;
};

// The blocks of a chunk one by one, and the tensors of every microbatch in them.
struct FlatUnit {
  std::vector<BlockKind> kinds;
  bool checkpointed = false;
};
using UnitTensors = std::vector<std::vector<BlockTensors>>;  // by unit, block

std::vector<FlatUnit> flatten(const ChunkLayout& chunk) {
  std::vector<FlatUnit> units;
  for (const Unit& unit : chunk.units) {
    FlatUnit flat{.kinds = {}, .checkpointed = unit.checkpointed};
    for (const BlockRun& run : unit.blocks) {
      flat.kinds.insert(flat.kinds.end(), static_cast<std::size_t>(run.count), run.kind);
    }
    units.insert(units.end(), static_cast<std::size_t>(unit.count), flat);
  }
  return units;
}

void write_forward(TimelineWriter& writer, const std::vector<FlatUnit>& units,
                   UnitTensors& tensors) {
  tensors.assign(units.size(), {});
  for (std::size_t u = 0; u < units.size(); ++u) {
    tensors[u].resize(units[u].kinds.size());
    for (std::size_t i = 0; i < units[u].kinds.size(); ++i) {
      const BlockKind kind = units[u].kinds[i];
      const BlockScript& script = writer.script(kind);
      if (units[u].checkpointed) {
        writer.run(kind, script.forward_unkept, tensors[u][i], i == 0 ? script.input_row : -1);
      } else {
        writer.run(kind, script.forward, tensors[u][i]);
      }
    }
  }
}

void write_backward(TimelineWriter& writer, const std::vector<FlatUnit>& units,
                    UnitTensors& tensors) {
  for (std::size_t u = units.size(); u-- > 0;) {
    const FlatUnit& unit = units[u];
    if (unit.checkpointed) {
      const BlockScript& last = writer.script(unit.kinds.back());
      BlockTensors& last_tensors = tensors[u].back();
      last_tensors.resize(last.bytes.size(), 0);
      const std::size_t gradient = static_cast<std::size_t>(last.output_gradient_row);
      last_tensors[gradient] = writer.allocate(last.bytes[gradient]);
      for (std::size_t i = 0; i < unit.kinds.size(); ++i) {
        writer.run(unit.kinds[i], writer.script(unit.kinds[i]).forward, tensors[u][i]);
      }
    }
    for (std::size_t i = unit.kinds.size(); i-- > 0;) {
      writer.run(unit.kinds[i], writer.script(unit.kinds[i]).backward, tensors[u][i]);
    }
  }
}

void write_weight(TimelineWriter& writer, const std::vector<FlatUnit>& units,
                  UnitTensors& tensors) {
  for (std::size_t u = units.size(); u-- > 0;) {
    for (std::size_t i = units[u].kinds.size(); i-- > 0;) {
      writer.run(units[u].kinds[i], writer.script(units[u].kinds[i]).weight, tensors[u][i]);
    }
  }
}

// The tensors behind a row of the state: optimizer state lies in one tensor per parameter of the
// rank's shard, a contiguous part of the parameters, and the model is built tensor by tensor;
// everything else is one tensor a copy.
std::vector<std::int64_t> tensor_bytes(const StateRow& row,
                                       const std::vector<std::int64_t>& parameters) {
  const bool is_split = row.component == Component::kOptimizer || row.last == Phase::kStartUp;
  if (!is_split || parameters.empty()) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(row.copies), row.bytes);
  }
  std::vector<std::int64_t> tensors;
  std::int64_t left = row.bytes;
  for (std::size_t i = 0; left > 0; i = (i + 1) % parameters.size()) {
    tensors.push_back(std::min(left, parameters[i] * bytes_of(row.dtype)));
    left -= tensors.back();
  }
  return tensors;
}

// Rows of the state that come and go with the phases of a step.
class StateTensors {
 public:
  // `parameters`: elements of the tensors that make up the stage.
  StateTensors(TimelineWriter& writer, const StageState& state,
               const std::vector<std::int64_t>& parameters)
      : writer_(writer), state_(state) {
    for (const StateRow& row : state.rows) {
      sizes_.push_back(tensor_bytes(row, parameters));
      ids_.emplace_back(sizes_.back().size(), 0);
    }
  }
  // Allocates what is alive in the phase and frees what is not. Before the first optimizer step
  // what it makes is not there.
  void enter(Phase phase) {
    is_first_step_ = is_first_step_ && phase != Phase::kOptimizer;
    for (std::size_t i = 0; i < state_.rows.size(); ++i) {
      const StateRow& row = state_.rows[i];
      const bool exists = row.is_alive(phase) && !(row.made_by_first_step && is_first_step_);
      for (std::size_t tensor = 0; tensor < ids_[i].size(); ++tensor) {
        std::int64_t& id = ids_[i][tensor];
        if (exists && id == 0) {
          id = writer_.allocate(sizes_[i][tensor]);
        }
        if (!exists) {
          writer_.free(id);
        }
      }
    }
  }

 private:
  TimelineWriter& writer_;
  const StageState& state_;
  std::vector<std::vector<std::int64_t>> sizes_;  // by row, tensor
  std::vector<std::vector<std::int64_t>> ids_;
  bool is_first_step_ = true;
};

void write_step(TimelineWriter& writer, StateTensors& state,
                const std::vector<std::vector<FlatUnit>>& chunks,
                const std::vector<ScheduleAction>& actions) {
  std::int64_t num_microbatches = 0;
  for (const ScheduleAction& action : actions) {
    num_microbatches = std::max(num_microbatches, action.microbatch + 1);
  }
  std::vector<std::vector<UnitTensors>> tensors(chunks.size());
  for (std::vector<UnitTensors>& chunk : tensors) {
    chunk.resize(static_cast<std::size_t>(num_microbatches));
  }
  for (const ScheduleAction& action : actions) {
    const std::size_t chunk = static_cast<std::size_t>(action.chunk);
    UnitTensors& held = tensors[chunk][static_cast<std::size_t>(action.microbatch)];
    state.enter(action.kind == ActionKind::kForward ? Phase::kForward : Phase::kBackward);
    switch (action.kind) {
      case ActionKind::kForward: write_forward(writer, chunks[chunk], held); break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: write_backward(writer, chunks[chunk], held); break;
      case ActionKind::kBackwardWeight: write_weight(writer, chunks[chunk], held); break;
    }
  }
  for (const Phase phase :
       {Phase::kReduction, Phase::kOptimizer, Phase::kParameterGather, Phase::kIdle}) {
    state.enter(phase);
  }
}

// Position in the actions after which every peak state has been met.
std::size_t end_of_peaks(const std::vector<ScheduleAction>& actions,
                         const std::vector<InFlightState>& peaks, std::size_t num_chunks) {
  std::vector<InFlightState> missing = peaks;
  InFlightState now;
  now.saved.assign(num_chunks, 0);
  now.pending_weight.assign(num_chunks, 0);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::size_t chunk = static_cast<std::size_t>(actions[i].chunk);
    const ActionKind kind = actions[i].kind;
    const bool ends_saving = kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
    now.action = kind;
    now.chunk = actions[i].chunk;
    now.saved[chunk] -= ends_saving ? 1 : 0;
    now.pending_weight[chunk] -= kind == ActionKind::kBackwardWeight ? 1 : 0;
    std::erase(missing, now);
    if (missing.empty()) {
      return i + 1;
    }
    now.saved[chunk] += kind == ActionKind::kForward ? 1 : 0;
    now.pending_weight[chunk] += kind == ActionKind::kBackwardInput ? 1 : 0;
  }
  return actions.size();
}

// The actions of all microbatches that begin before the last peak state; the rest repeat them.
std::vector<ScheduleAction> actions_to_peak(const Job& job, const Plan& plan,
                                            const StagePieces& pieces) {
  const ScheduleShape shape = shortest_equivalent(schedule_shape(job, plan));
  std::vector<ScheduleAction> actions = schedule_actions(shape, pieces.layout.pp_rank);
  const std::size_t end = end_of_peaks(actions, pieces.schedule, pieces.chunks.size());
  std::int64_t last_microbatch = 0;
  for (std::size_t i = 0; i < end; ++i) {
    last_microbatch = std::max(last_microbatch, actions[i].microbatch);
  }
  std::erase_if(actions,
                [&](const ScheduleAction& action) { return action.microbatch > last_microbatch; });
  return actions;
}

// Elements of the large parameter tensors of a stage, in model order.
std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage) {
  std::vector<std::int64_t> tensors;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
    for (std::int64_t block = 0; block < count_blocks(stage, kind); ++block) {
      for (const WeightShape& shape : weight_shapes(job, plan, shapes)) {
        tensors.insert(tensors.end(), static_cast<std::size_t>(shape.count),
                       shape.rows * shape.columns);
      }
    }
  }
  return tensors;
}

}  // namespace

std::vector<AllocationEvent> stage_timeline(const Job& job, const Plan& plan,
                                            const BlockSet& blocks, const StagePieces& pieces) {
  TimelineWriter writer(blocks);
  const std::vector<std::int64_t> built = parameter_elements(job, plan, pieces.layout);
  StateTensors state(writer, pieces.state, built);
  std::vector<std::vector<FlatUnit>> chunks;
  for (const ChunkLayout& chunk : pieces.layout.chunks) { chunks.push_back(flatten(chunk)); }
  const std::vector<ScheduleAction> actions = actions_to_peak(job, plan, pieces);
  state.enter(Phase::kStartUp);
  state.enter(Phase::kIdle);
  constexpr int kSteps = 2;
  for (int step = 0; step < kSteps; ++step) { write_step(writer, state, chunks, actions); }
  return writer.events;
}

}  // namespace shardplan
