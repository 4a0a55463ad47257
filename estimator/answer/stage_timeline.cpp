#include "estimator/answer/stage_timeline.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/framework.h"
#include "estimator/ledger/fsdp_tensors.h"
#include "estimator/ledger/peak_actions.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/timeline_writer.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/plan/schedule.h"

namespace shardplan {
namespace {

// The blocks of a chunk one by one, and the tensors of every microbatch in them.
struct FlatUnit {
  std::vector<BlockKind> kinds;
  bool checkpointed = false;
  std::size_t first_block = 0;  // of the chunk's
};
using UnitTensors = std::vector<std::vector<BlockTensors>>;  // by unit, block

std::vector<FlatUnit> flatten(const ChunkLayout& chunk) {
  std::vector<FlatUnit> units;
  std::size_t blocks = 0;
  for (const Unit& unit : chunk.units) {
    FlatUnit flat{.kinds = {}, .checkpointed = unit.checkpointed, .first_block = blocks};
    for (const BlockRun& run : unit.blocks) {
      flat.kinds.insert(flat.kinds.end(), static_cast<std::size_t>(run.count), run.kind);
    }
    for (std::int64_t copy = 0; copy < unit.count; ++copy) {
      units.push_back(flat);
      flat.first_block += flat.kinds.size();
    }
    blocks = flat.first_block;
  }
  return units;
}

void write_forward(TimelineWriter& writer, const std::vector<FlatUnit>& units,
                   const FsdpBuffers& buffers, const ExpertLoads& loads, UnitTensors& tensors) {
  writer.start(Thread::kMain);
  tensors.assign(units.size(), {});
  FsdpTensors fsdp(writer, buffers);
  for (std::size_t u = 0; u < units.size(); ++u) {
    fsdp.enter_forward(u);
    tensors[u].resize(units[u].kinds.size());
    for (std::size_t i = 0; i < units[u].kinds.size(); ++i) {
      const BlockKind kind = units[u].kinds[i];
      const BlockScript& script = writer.script(kind);
      writer.set_load(loads.load(units[u].first_block + i));
      if (units[u].checkpointed) {
        writer.run(kind, script.forward_unkept, tensors[u][i], i == 0);
      } else {
        writer.run(kind, script.forward, tensors[u][i]);
      }
    }
  }
  writer.end_forward();
  fsdp.leave();
}

// What the backward of a recomputed group holds until its end, where its blocks hand tensors on:
// its output and that one's gradient (core/tensor_parallel/random.py, CheckpointFunction.backward:
// outputs and args).
struct Replayed {
  std::int64_t output = 0;
  std::int64_t gradient = 0;
};

Replayed write_replay(TimelineWriter& writer, const FlatUnit& unit, const ExpertLoads& loads,
                      std::vector<BlockTensors>& tensors) {
  const BlockScript& last = writer.script(unit.kinds.back());
  tensors.back().resize(last.rows.size(), 0);
  const std::size_t row = static_cast<std::size_t>(last.output_gradient_row);
  std::int64_t& gradient = tensors.back()[row];
  gradient = writer.take_over(last.rows[row].bytes, last.rows[row].stream);
  for (std::size_t i = 0; i < unit.kinds.size(); ++i) {
    writer.set_load(loads.load(unit.first_block + i));
    writer.run(unit.kinds[i], writer.script(unit.kinds[i]).forward, tensors[i]);
  }
  return {.output = writer.take_handed(), .gradient = last.rows[row].is_handed_on ? gradient : 0};
}

void hold_input(TimelineWriter& writer, BlockKind kind, BlockTensors& tensors) {
  const BlockScript& script = writer.script(kind);
  for (std::size_t row = 0; row < tensors.size(); ++row) {
    if (script.rows[row].stays && script.rows[row].is_taken_over) {
      writer.hold_input(tensors[row]);
    }
  }
}

void write_backward(TimelineWriter& writer, const std::vector<FlatUnit>& units,
                    const FsdpBuffers& buffers, const ExpertLoads& loads, UnitTensors& tensors) {
  writer.start(Thread::kAutograd);
  writer.end_uses();
  writer.drop_input();
  FsdpTensors fsdp(writer, buffers);
  for (std::size_t u = units.size(); u-- > 0;) {
    const FlatUnit& unit = units[u];
    Replayed replayed;
    if (unit.checkpointed) {
      fsdp.enter_replay(u);
      replayed = write_replay(writer, unit, loads, tensors[u]);
    }
    fsdp.enter_backward(u);
    for (std::size_t i = unit.kinds.size(); i-- > 0;) {
      const bool is_last = i + 1 == unit.kinds.size();
      if (u == 0 && i == 0 && writer.receives()) {
        hold_input(writer, unit.kinds[i], tensors[u][i]);
      }
      writer.set_load(loads.load(unit.first_block + i));
      writer.run_backward(unit.kinds[i], tensors[u][i], is_last ? replayed.gradient : 0);
    }
    writer.free(replayed.output);
    writer.free(replayed.gradient);
  }
  writer.end_backward();
  fsdp.leave();
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
  if (is_block_ends(row.name)) {
    return {};
  }
  const bool is_split = row.is_split || row.component == Component::kOptimizer ||
                        row.last == Phase::kStartUp || row.name == kStepTemporaryRow;
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
      : writer_(writer), state_(state), is_there_(state.rows.size(), false) {
    for (const StateRow& row : state.rows) {
      sizes_.push_back(awaits(row) ? std::vector<std::int64_t>{} : tensor_bytes(row, parameters));
      ids_.emplace_back(sizes_.back().size(), 0);
    }
  }
  // Frees what is not alive in the phase, then allocates what is. Before the first optimizer step
  // what it makes is not there.
  void enter(Phase phase) {
    is_first_step_ = is_first_step_ && phase != Phase::kOptimizer;
    born_.clear();
    std::size_t most_tensors = 0;
    for (std::size_t i = 0; i < state_.rows.size(); ++i) {
      const bool is_there = exists(state_.rows[i], phase);
      if (is_there == is_there_[i]) {
        continue;
      }
      is_there_[i] = is_there;
      if (is_there) {
        born_.push_back(i);
        most_tensors = std::max(most_tensors, ids_[i].size());
      } else {
        free_all(ids_[i]);
      }
    }
    // Optimizers make the state of one parameter after the other.
    for (std::size_t tensor = 0; tensor < most_tensors; ++tensor) {
      for (const std::size_t i : born_) {
        if (state_.rows[i].component == Component::kOptimizer && tensor < ids_[i].size()) {
          allocate(i, tensor);
        }
      }
    }
    for (const std::size_t i : born_) {
      for (std::size_t tensor = 0; tensor < ids_[i].size(); ++tensor) { allocate(i, tensor); }
    }
  }

  // What lasts from start-up on has been allocated by others.
  void skip_built() {
    for (std::size_t i = 0; i < state_.rows.size(); ++i) {
      if (state_.rows[i].first <= Phase::kBuilt && !state_.rows[i].made_by_first_step) {
        std::ranges::fill(ids_[i], kBuiltBefore);
      }
    }
  }

 private:
  static constexpr std::int64_t kBuiltBefore = -1;  // an id

  // Whether others make it, later.
  bool awaits(const StateRow& row) {
    switch (row.made_by) {
      case MadeBy::kPhase: return false;
      case MadeBy::kFirstGather: writer_.await_gather(row.bytes); return true;
      case MadeBy::kFirstProducts: writer_.await_products(row.bytes); return true;
      case MadeBy::kFirstGradients: return true;  // await_once
      case MadeBy::kPipelineLoop:
        if (row.bytes * row.copies > 0) {
          writer_.receive_inputs();
        }
        return true;
    }
    return false;
  }
  bool exists(const StateRow& row, Phase phase) const {
    return row.is_alive(phase) && !(row.made_by_first_step && is_first_step_);
  }
  void free_all(std::vector<std::int64_t>& ids) {
    for (std::int64_t& id : ids) {
      if (id != kBuiltBefore) {
        writer_.free(id);
      }
    }
  }
  void allocate(std::size_t row, std::size_t tensor) {
    std::int64_t& id = ids_[row][tensor];
    if (id == 0) {
      id = writer_.allocate(sizes_[row][tensor], state_.rows[row].stream);
    }
  }

  TimelineWriter& writer_;
  const StageState& state_;
  std::vector<std::vector<std::int64_t>> sizes_;  // by row, tensor
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<bool> is_there_;     // by row
  std::vector<std::size_t> born_;  // rows that the phase brings
  bool is_first_step_ = true;
};

// Gradients that a microbatch has made go over to the next one of the chunk, or are freed.
void pass_gradients(TimelineWriter& writer, const std::vector<FlatUnit>& units, UnitTensors& from,
                    UnitTensors* to) {
  for (std::size_t u = 0; u < from.size(); ++u) {
    for (std::size_t i = 0; i < from[u].size(); ++i) {
      const BlockScript& script = writer.script(units[u].kinds[i]);
      for (std::size_t row = 0; row < from[u][i].size(); ++row) {
        if (!script.rows[row].is_gradient) {
          continue;
        }
        if (to == nullptr) {
          writer.free(from[u][i][row]);
        } else {
          (*to)[u][i][row] = std::exchange(from[u][i][row], 0);
        }
      }
    }
  }
}

// What every step of a stage runs.
struct StepScript {
  std::vector<std::vector<FlatUnit>> chunks;
  const std::vector<FsdpBuffers>& buffers;
  std::vector<ScheduleAction> actions;
  double load_spread = 0;
  std::int64_t rank = 0;  // of those that get loads of their own
};

void write_step(TimelineWriter& writer, StateTensors& state, const StepScript& script,
                std::int64_t step) {
  const auto& [chunks, buffers, actions, spread, rank] = script;
  writer.drop_received();
  std::int64_t num_microbatches = 0;
  for (const ScheduleAction& action : actions) {
    num_microbatches = std::max(num_microbatches, action.microbatch + 1);
  }
  std::vector<std::vector<UnitTensors>> tensors(chunks.size());
  for (std::vector<UnitTensors>& chunk : tensors) {
    chunk.resize(static_cast<std::size_t>(num_microbatches));
  }
  std::vector<UnitTensors*> made(chunks.size(), nullptr);  // by chunk: who holds its gradients
  for (const ScheduleAction& action : actions) {
    const std::size_t chunk = static_cast<std::size_t>(action.chunk);
    UnitTensors& held = tensors[chunk][static_cast<std::size_t>(action.microbatch)];
    if (writer.has_gradients() && action.kind != ActionKind::kForward) {
      if (made[chunk] != nullptr && made[chunk] != &held) {
        pass_gradients(writer, chunks[chunk], *made[chunk], &held);
      }
      made[chunk] = &held;
    }
    const std::int64_t pass =
        (step * std::ssize(chunks) + action.chunk) * num_microbatches + action.microbatch;
    const ExpertLoads loads(spread, rank, pass);
    state.enter(action.kind == ActionKind::kForward ? Phase::kForward : Phase::kBackward);
    switch (action.kind) {
      case ActionKind::kForward:
        write_forward(writer, chunks[chunk], buffers[chunk], loads, held);
        break;
      case ActionKind::kBackward:
        write_backward(writer, chunks[chunk], buffers[chunk], loads, held);
        write_weight(writer, chunks[chunk], held);  // what lasts until its end
        break;
      case ActionKind::kBackwardInput:
        write_backward(writer, chunks[chunk], buffers[chunk], loads, held);
        break;
      case ActionKind::kBackwardWeight: write_weight(writer, chunks[chunk], held); break;
    }
  }
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (made[chunk] != nullptr) {
      pass_gradients(writer, chunks[chunk], *made[chunk], nullptr);
    }
  }
  for (const Phase phase : {Phase::kReduction, Phase::kGradientNorm, Phase::kOptimizer,
                            Phase::kParameterGather, Phase::kIdle}) {
    if (phase == Phase::kOptimizer) {
      writer.end_uses();  // the host reads the norm
    }
    state.enter(phase);
  }
}

}  // namespace

std::vector<AllocationEvent> stage_timeline(const Job& job, const Plan& plan,
                                            const BlockSet& blocks, const StagePieces& pieces,
                                            const RankTensors& tensors) {
  const Framework& framework = framework_of(job.profile);
  if (framework.timeline != nullptr) {
    return framework.timeline(job, plan, pieces, tensors.rank);
  }
  const BuiltStage& built = tensors.built;
  TimelineWriter writer(blocks);
  writer.add(built.events);
  StateTensors state(writer, pieces.state, built.optimizer_elements);
  if (framework.made_once_bytes != nullptr) {
    writer.await_once(framework.made_once_bytes(job, plan, pieces.layout));
  }
  if (!built.events.empty()) {
    state.skip_built();
  }
  const double spread = load_spread(job, plan);
  StepScript script{
      .chunks = {},
      .buffers = pieces.buffers,
      .actions = spread > 0 ? all_actions(job, plan, pieces) : actions_to_peak(job, plan, pieces),
      .load_spread = spread,
      .rank = tensors.rank};
  for (const ChunkLayout& chunk : pieces.layout.chunks) { script.chunks.push_back(flatten(chunk)); }
  state.enter(Phase::kStartUp);
  state.enter(Phase::kIdle);
  // The second step meets the optimizer's state in the cache that the first has left, the third
  // what the second has left of its own. Uneven loads leave more of them the longer they last.
  constexpr std::int64_t kSteps = 3;
  constexpr std::int64_t kUnevenSteps = 16;
  constexpr std::int64_t kUnevenEvents = 16'000;
  for (std::int64_t step = 0; step < kSteps || (spread > 0 && step < kUnevenSteps &&
                                                std::ssize(writer.events) < kUnevenEvents);
       ++step) {
    if (step == 1 && built.rebuilt_id != 0) {
      std::int64_t rebuilt_id = built.rebuilt_id;
      writer.free(rebuilt_id);
      for (const std::int64_t bytes : built.rebuilt_bytes) { writer.allocate(bytes); }
    }
    write_step(writer, state, script, step);
  }
  return std::move(writer.events);
}

}  // namespace shardplan
