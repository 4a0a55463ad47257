#include "estimator/answer/step_trace.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "estimator/answer/stage_memory.h"
#include "estimator/answer/step_parts.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/in_flight.h"
#include "estimator/time/schedule_walk.h"

namespace shardplan {
namespace {

constexpr std::int64_t kFewestShown = 8;

std::string name_of(const ScheduleAction& action, std::int64_t vpp) {
  const auto kind = [&] {
    switch (action.kind) {
      case ActionKind::kForward: return "forward";
      case ActionKind::kBackward: return "backward";
      case ActionKind::kBackwardInput: return "backward input";
      case ActionKind::kBackwardWeight: return "backward weight";
    }
    throw std::logic_error("step_trace: unknown action");
  };
  return std::string(kind()) + " microbatch " + std::to_string(action.microbatch) +
         (vpp > 1 ? " chunk " + std::to_string(action.chunk) : "");
}

TraceLane lane_of(PieceKind kind) {
  switch (kind) {
    case PieceKind::kTensorParallel: return TraceLane::kTensorParallel;
    case PieceKind::kContextParallel: return TraceLane::kContextParallel;
    case PieceKind::kExpertParallel: return TraceLane::kExpertParallel;
    case PieceKind::kProduct:
    case PieceKind::kAttention:
    case PieceKind::kElementwise: return TraceLane::kCompute;
  }
  throw std::logic_error("step_trace: unknown piece");
}

// Writes the spans of one stage, one after the other.
class StageWriter {
 public:
  StageWriter(const StepParts& parts, std::int64_t stage, std::vector<TraceSpan>& spans)
      : parts_(parts), stage_(stage), spans_(spans) {}

  void write(const TimedAction& timed) {
    const ScheduleAction& action = timed.action;
    const std::int64_t position = position_of(parts_.shape, stage_, action.chunk);
    const std::size_t kind = parts_.layout.pipeline.chunk_kinds[static_cast<std::size_t>(position)];
    const ChunkWork& work = parts_.works[kind];
    action_ = &action;
    now_s_ = timed.start_s;
    const std::size_t whole = begin(0, name_of(action, parts_.shape.vpp), 1);
    std::vector<TimedBlocks> runs = parts_.blocks_of(parts_.layout.chunks[kind]);
    if (action.kind != ActionKind::kForward) {
      std::ranges::reverse(runs);
    }
    for (const TimedBlocks& run : runs) { write_run(run); }
    if (action.kind == ActionKind::kForward) {
      leaf(TraceLane::kSends, "send to the next stage", work.forward_send_s, 0);
    } else if (action.kind != ActionKind::kBackwardWeight) {
      leaf(TraceLane::kSends, "send to the stage before", work.backward_send_s, 0);
    }
    spans_[whole].end_s = timed.end_s;
  }

  // Actions that are not shown.
  void write_rest(const std::vector<TimedAction>& actions, std::size_t first, std::size_t count) {
    double busy_s = 0;
    for (std::size_t i = first; i < first + count; ++i) {
      busy_s += actions[i].end_s - actions[i].start_s;
    }
    spans_.push_back(
        {.stage = stage_,
         .name = std::to_string(count) + " more actions, busy " + std::to_string(busy_s) + " s",
         .start_s = actions[first].start_s,
         .end_s = actions[first + count - 1].end_s,
         .count = static_cast<std::int64_t>(count)});
  }

  // After the pipeline, which ends at `start_s`.
  void write_update(const StageUpdate& update, double start_s) {
    const double hidden_s = std::min(update.data_parallel_hidden_s, start_s);
    const auto add = [&](TraceLane lane, const char* name, double from_s, double seconds) {
      if (seconds > 0) {
        spans_.push_back({.stage = stage_,
                          .lane = lane,
                          .name = name,
                          .start_s = from_s,
                          .end_s = from_s + seconds});
      }
    };
    add(TraceLane::kDataParallel, "gradients and parameters, hidden in the step",
        start_s - hidden_s, hidden_s);
    add(TraceLane::kDataParallel, "gradients and parameters, visible", start_s,
        update.data_parallel_s);
    add(TraceLane::kCompute, "optimizer", start_s + update.data_parallel_s, update.optimizer_s);
  }

 private:
  std::size_t begin(std::int64_t depth, std::string name, std::int64_t count) {
    spans_.push_back({.stage = stage_,
                      .depth = depth,
                      .name = std::move(name),
                      .start_s = now_s_,
                      .chunk = action_->chunk,
                      .microbatch = action_->microbatch,
                      .count = count});
    return spans_.size() - 1;
  }

  // What takes its time after what came before, on the lane where it happens.
  void leaf(TraceLane lane, std::string name, double seconds, double flops) {
    if (seconds > 0) {
      const std::size_t span = begin(lane == TraceLane::kCompute ? 2 : 0, std::move(name), 1);
      now_s_ += seconds;
      spans_[span].lane = lane;
      spans_[span].end_s = now_s_;
      spans_[span].flops = flops;
    }
  }

  void write_run(const TimedBlocks& run) {
    const double n = static_cast<double>(run.count);
    const double replayed = static_cast<double>(run.replayed);
    const ActionKind kind = action_->kind;
    const double start_s = now_s_;
    const std::size_t block =
        begin(1, (run.count > 1 ? std::to_string(run.count) + " x " : "") + run.name, run.count);
    double hidden_s = 0;
    if (kind == ActionKind::kForward) {
      for (const TimedPiece& piece : *run.pieces) {
        leaf(lane_of(piece.kind), name_of(piece), n * piece.forward_s, n * piece.forward_flops);
        hidden_s += n * piece.forward_hidden_s;
      }
    }
    if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput) {
      leaf(TraceLane::kCompute, "forward once more", replayed * run.time->recompute_s, 0);
      write_backward(
          run, [](const TimedPiece& piece) { return piece.backward_input_s; }, "");
      for (const TimedPiece& piece : *run.pieces) { hidden_s += n * piece.backward_hidden_s; }
    }
    if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight) {
      write_backward(
          run, [](const TimedPiece& piece) { return piece.backward_weight_s; },
          ", weight gradient");
    }
    if (kind != ActionKind::kBackwardWeight) {
      const bool is_forward = kind == ActionKind::kForward;
      leaf(TraceLane::kCompute, "waiting for the host",
           is_forward ? n * run.time->forward_host_s
                      : n * run.time->backward_host_s + replayed * run.time->recompute_host_s,
           0);
    }
    spans_[block].end_s = now_s_;
    write_hidden(start_s, hidden_s);
  }

  template <class Seconds>
  void write_backward(const TimedBlocks& run, const Seconds& seconds, const char* suffix) {
    const double n = static_cast<double>(run.count);
    for (std::size_t i = run.pieces->size(); i-- > 0;) {
      const TimedPiece& piece = (*run.pieces)[i];
      // Of a product each gradient is a product of as many FLOPs; attention makes 2.5 times as
      // many.
      const double products = piece.kind == PieceKind::kAttention ? 2.5 : 1;
      leaf(lane_of(piece.kind), name_of(piece) + suffix, n * seconds(piece),
           products * n * piece.forward_flops);
    }
  }

  // Beside the blocks that hide it, as far as they last.
  void write_hidden(double start_s, double hidden_s) {
    const double shown_s = std::min(hidden_s, now_s_ - start_s);
    if (shown_s > 0) {
      spans_.push_back({.stage = stage_,
                        .lane = TraceLane::kHidden,
                        .name = "communication behind compute",
                        .start_s = start_s,
                        .end_s = start_s + shown_s,
                        .chunk = action_->chunk,
                        .microbatch = action_->microbatch});
    }
  }

  const StepParts& parts_;
  std::int64_t stage_;
  std::vector<TraceSpan>& spans_;
  const ScheduleAction* action_ = nullptr;  // that is being written
  double now_s_ = 0;
};

// The most that one action can have.
std::int64_t spans_of_action(const StepParts& parts) {
  std::int64_t most = 0;
  for (const ChunkKind& chunk : parts.layout.chunks) {
    std::int64_t spans = 2;
    for (const TimedBlocks& run : parts.blocks_of(chunk)) {
      spans += 4 + 2 * std::ssize(*run.pieces);
    }
    most = std::max(most, spans);
  }
  return most;
}

std::vector<ChunkTime> times_by_position(const StepParts& parts) {
  std::vector<ChunkTime> times;
  for (const std::size_t kind : parts.layout.pipeline.chunk_kinds) {
    times.push_back(parts.chunk_times[kind]);
  }
  return times;
}

// What every action of a stage holds, and the phases after it.
class MemoryWriter {
 public:
  MemoryWriter(const Job& job, const StagePieces& pieces, const ScheduleShape& shape,
               std::int64_t stage, std::vector<MemoryPoint>& points)
      : job_(job),
        pieces_(pieces),
        shape_(shape),
        stage_(stage),
        points_(points),
        now_(none_in_flight(static_cast<std::size_t>(shape.vpp))) {}

  void pass(const TimedAction& timed, bool is_shown) {
    begin_action(timed.action, now_);
    if (is_shown) {
      add(timed.start_s, most_in_action());
    }
    end_action(shape_, timed.action, now_);
  }
  void add_phase(double time_s, Phase phase) {
    add(time_s, pieces_.state.bytes.alive[static_cast<std::size_t>(phase)]);
  }

 private:
  std::int64_t most_in_action() const {
    const StagePeaks peaks =
        stage_peaks(job_, pieces_.state.bytes, pieces_.chunks, {&now_, std::size_t{1}});
    std::int64_t most = 0;
    for (std::size_t moment = static_cast<std::size_t>(MomentKind::kForward);
         moment <= static_cast<std::size_t>(MomentKind::kWeight); ++moment) {
      most = std::max(most, peaks.moments[moment].bytes);
    }
    return most;
  }
  void add(double time_s, std::int64_t bytes) {
    points_.push_back({.stage = stage_, .time_s = time_s, .bytes = bytes});
  }

  const Job& job_;
  const StagePieces& pieces_;
  const ScheduleShape& shape_;
  std::int64_t stage_;
  std::vector<MemoryPoint>& points_;
  InFlightState now_;
};

}  // namespace

std::int64_t num_actions(const Job& job, const Plan& plan) {
  const ScheduleShape shape = schedule_shape(job, plan);
  return 3 * shape.num_microbatches * shape.vpp * shape.pp;
}

StepTrace step_trace(const Job& job, const Plan& plan, std::int64_t most_spans) {
  const StepParts parts(job, plan);
  const bool has_formula = framework_of(job.profile).formula != nullptr;  // of the peak
  const PlanPieces memory = has_formula ? PlanPieces{} : plan_pieces(job, plan);
  const ScheduleWalk walk = walk_schedule(parts.shape, times_by_position(parts));
  const double pipeline_s = std::max(walk.total_s, parts.pipeline.total_s);
  const std::int64_t affordable = most_spans / parts.shape.pp / spans_of_action(parts);
  const std::size_t shown = static_cast<std::size_t>(std::max(kFewestShown, affordable));
  StepTrace trace;
  trace.predicted_s = parts.step.total_s;
  for (std::int64_t stage = 0; stage < parts.shape.pp; ++stage) {
    const std::vector<TimedAction>& actions = walk.ranks[static_cast<std::size_t>(stage)];
    StageWriter writer(parts, stage, trace.spans);
    const std::size_t left_out = actions.size() > shown ? actions.size() - shown : 0;
    const std::size_t gap = left_out > 0 ? shown / 2 : actions.size();
    StageTrace summary = {.actions = std::ssize(actions),
                          .shown = static_cast<std::int64_t>(actions.size() - left_out)};
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const bool is_shown = i < gap || i >= gap + left_out;
      summary.busy_s += actions[i].end_s - actions[i].start_s;
      if (is_shown) {
        writer.write(actions[i]);
      } else if (i == gap) {
        writer.write_rest(actions, gap, left_out);
      }
    }
    const StageUpdate update = parts.after_pipeline(stage);
    writer.write_update(update, pipeline_s);
    if (!memory.stages.empty()) {
      MemoryWriter bytes(job, memory.stages[static_cast<std::size_t>(stage)], parts.shape, stage,
                         trace.memory);
      for (std::size_t i = 0; i < actions.size(); ++i) {
        bytes.pass(actions[i], i < gap || i >= gap + left_out);
      }
      bytes.add_phase(pipeline_s, Phase::kReduction);
      bytes.add_phase(pipeline_s + update.data_parallel_s, Phase::kOptimizer);
      bytes.add_phase(pipeline_s + update.total_s(), Phase::kIdle);
    }
    summary.busy_s += update.total_s();
    trace.total_s = std::max(trace.total_s, pipeline_s + update.total_s());
    trace.stages.push_back(summary);
  }
  for (StageTrace& stage : trace.stages) { stage.bubble_s = trace.total_s - stage.busy_s; }
  trace.beyond_s = trace.total_s - trace.predicted_s;
  return trace;
}

}  // namespace shardplan
