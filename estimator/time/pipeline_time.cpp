// Letters: p ranks, v chunks a rank, m microbatches, r a rank; f, b, w forward, input gradient and
// weight gradient of one unit (chunk x microbatch), t = f + b + w.
//
// A schedule is a graph of actions; its length is the longest path. Long paths stay on one rank r
// for m * t_r and add what it costs to get there, to wait for a round trip through the later ranks,
// and to get out. Each formula below is the longest of such paths; the walk confirms them.
#include "estimator/time/pipeline_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace shardplan {
namespace {

void add(ChunkTime& total, const ChunkTime& time, std::int64_t count) {
  const double n = static_cast<double>(count);
  total.forward_s += n * time.forward_s;
  total.backward_input_s += n * time.backward_input_s;
  total.backward_weight_s += n * time.backward_weight_s;
}

ChunkTime sum_of(std::span<const std::int64_t> counts, std::span<const ChunkTime> kinds) {
  ChunkTime work;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) { add(work, kinds[kind], counts[kind]); }
  return work;
}

// A pipeline and what one microbatch costs in it.
struct Pipeline {
  const ScheduleShape& shape;
  const PipelineLayout& layout;
  std::span<const ChunkTime> kinds;

  double microbatches() const { return static_cast<double>(shape.num_microbatches); }
  ChunkTime total_work() const { return sum_of(layout.chunks, kinds); }
  ChunkTime rank_work(const RankRun& run) const {
    return sum_of(layout.rank_chunks[run.kind], kinds);
  }
};

class LongestLine {
 public:
  void offer(std::int64_t rank, double total_s) {
    if (total_s > longest_.total_s) {
      longest_ = {.total_s = total_s, .critical_rank = rank};
    }
  }
  PipelineTime longest() const { return longest_; }

 private:
  PipelineTime longest_;
};

// Two flow shops, one after the other: sum + (m - 1) * slowest, forward and backward. Exact.
PipelineTime gpipe_time(const Pipeline& pipeline) {
  double slowest_forward = 0;
  double slowest_backward = 0;
  LongestLine slowest;
  for (const RankRun& run : pipeline.layout.runs) {
    const ChunkTime time = pipeline.rank_work(run);
    slowest.offer(run.first, time.total_s());
    slowest_forward = std::max(slowest_forward, time.forward_s);
    slowest_backward = std::max(slowest_backward, time.backward_input_s + time.backward_weight_s);
  }
  return {.total_s = pipeline.total_work().total_s() +
                     (pipeline.microbatches() - 1) * (slowest_forward + slowest_backward),
          .critical_rank = slowest.longest().critical_rank};
}

// Line r of 1F1B. Its first backward waits for a round trip through the later ranks, less the
// further forwards of its warm-up; its last backward likewise, less as many backwards. Where the
// warm-up takes all microbatches, all forwards precede all backwards and there is one round trip.
// Along a run of equal ranks neither kind falls, but for the second's part that is the same on all
// of them: the ends of the run decide.
PipelineTime one_f_one_b_time(const Pipeline& pipeline) {
  const ScheduleShape& shape = pipeline.shape;
  const double m = pipeline.microbatches();
  const std::int64_t warmup_per_hop = row_of(shape.schedule).warmup_per_hop;
  const double all = pipeline.total_work().total_s();
  double before_run = 0;
  LongestLine line;
  for (const RankRun& run : pipeline.layout.runs) {
    const ChunkTime time = pipeline.rank_work(run);
    const double f = time.forward_s;
    const double b = time.backward_input_s + time.backward_weight_s;
    const auto offer = [&](std::int64_t r) {
      const double before = before_run + static_cast<double>(r - run.first) * (f + b);
      const double after = all - before - (f + b);
      const std::int64_t warmup = warmup_per_hop * (shape.pp - r - 1);
      if (shape.num_microbatches > warmup + 1) {
        line.offer(r, before + m * (f + b) +
                          std::max(0.0, after - static_cast<double>(warmup) * f) +
                          std::max(0.0, after - static_cast<double>(warmup) * b));
      } else {
        line.offer(r, before + std::max(m * (f + b), after + std::max(f + m * b, m * f + b)));
      }
    };
    offer(run.first);
    offer(run.first + run.count - 1);
    before_run += static_cast<double>(run.count) * (f + b);
  }
  return line.longest();
}

// Line r of zero-bubble H1, m > p. It is entered by the first forward or by the first input
// gradient (after p - r forwards), waits for the last round trip less p - r - 1 input and weight
// gradients, and is left upwards by the last input gradient: rank q < r then still has q + 1 weight
// gradients to do, r itself has r + 1. Even stages: (p - 1) * max(f, b, f + b - w).
PipelineTime zero_bubble_h1_time(const Pipeline& pipeline) {
  const ScheduleShape& shape = pipeline.shape;
  const double m = pipeline.microbatches();
  const ChunkTime all = pipeline.total_work();
  ChunkTime before;
  double upwards = 0;  // longest way out through an earlier rank
  LongestLine line;
  for (const RankRun& run : pipeline.layout.runs) {
    const ChunkTime time = pipeline.rank_work(run);
    const auto [f, b, w] = time;
    for (std::int64_t r = run.first; r < run.first + run.count; ++r) {
      const double hops = static_cast<double>(shape.pp - r - 1);
      const double later_f = all.forward_s - before.forward_s - f;
      const double later_b = all.backward_input_s - before.backward_input_s - b;
      const double own_weights = static_cast<double>(r + 1) * w;
      const double entry = before.forward_s + std::max(0.0, later_f + later_b - hops * f);
      const double wait = std::max(0.0, later_f + later_b - hops * (b + w));
      const double exit = std::max(0.0, upwards - own_weights);
      line.offer(r, entry + m * time.total_s() + wait + exit);
      upwards = b + std::max(upwards, own_weights);
      add(before, time, 1);
    }
  }
  return line.longest();
}

// Bubbles of even chunks; `others` is the work of the p - 1 other ranks, one chunk each.
using BubbleOfChunks = double (*)(const ScheduleShape& shape, const ChunkTime& others);

// Interleaved 1F1B: (p - 1) * t (arXiv 2104.04473 section 2.2).
double interleaved_bubble_s(const ScheduleShape& /*shape*/, const ChunkTime& others) {
  return others.total_s();
}

// Interleaved zero bubble: (p - 1) * max(f, b, f + b - w), as for H1 with chunks for stages.
double interleaved_zero_bubble_s(const ScheduleShape& /*shape*/, const ChunkTime& others) {
  const auto [f, b, w] = others;
  return std::max({f, b, f + b - w});
}

// Zero-bubble V, m >= 2 p - 1: the longest of eight paths, found by differentiating the walk; with
// f = b = w it is (p - 1) * f, the start of the last rank.
double v_bubble_s(const ScheduleShape& shape, const ChunkTime& others) {
  const auto [f, b, w] = others;
  const double one = 1 / static_cast<double>(shape.pp - 1);
  return std::max({b * one + w * (1 - one), f * one + w * (1 - one), b, 2 * (b - w),
                   f * (2 - one) - b * (1 - one), f * (2 - one) + b * one - 2 * w,
                   2 * f - b - w * one, 2 * f - w * (2 + one)});
}

// Several chunks a rank: line r works m * t_r and waits as the other ranks' mean chunks make it.
PipelineTime several_chunks_time(const Pipeline& pipeline, BubbleOfChunks bubble_s) {
  const ScheduleShape& shape = pipeline.shape;
  const double v = static_cast<double>(shape.vpp);
  const ChunkTime all = pipeline.total_work();
  LongestLine line;
  for (const RankRun& run : pipeline.layout.runs) {
    const ChunkTime own = pipeline.rank_work(run);
    const ChunkTime others = {
        .forward_s = (all.forward_s - own.forward_s) / v,
        .backward_input_s = (all.backward_input_s - own.backward_input_s) / v,
        .backward_weight_s = (all.backward_weight_s - own.backward_weight_s) / v};
    line.offer(run.first, pipeline.microbatches() * own.total_s() + bubble_s(shape, others));
  }
  return line.longest();
}

// Too few microbatches for a steady state, or a last group that is not full: walk the schedule,
// shortened by whole groups of the slowest rank's work.
PipelineTime walked_time(const Pipeline& pipeline) {
  LongestLine slowest;
  for (const RankRun& run : pipeline.layout.runs) {
    slowest.offer(run.first, pipeline.rank_work(run).total_s());
  }
  std::vector<ChunkTime> chunks;
  chunks.reserve(pipeline.layout.chunk_kinds.size());
  for (const std::size_t kind : pipeline.layout.chunk_kinds) {
    chunks.push_back(pipeline.kinds[kind]);
  }
  const ScheduleShape shorter = shortest_equivalent(pipeline.shape);
  const double left_out =
      static_cast<double>(pipeline.shape.num_microbatches - shorter.num_microbatches);
  return {.total_s = walk_schedule(shorter, chunks).total_s + left_out * slowest.longest().total_s,
          .critical_rank = slowest.longest().critical_rank};
}

bool fills_groups(const ScheduleShape& shape) {
  return shape.num_microbatches >= shape.pp &&
         shape.num_microbatches % microbatch_group(shape) == 0;
}

// How long a schedule takes: one row each, in the order of kSchedules.
struct ScheduleTime {
  // Whether the formulas hold: the steady state is reached; none: always.
  bool (*is_steady)(const ScheduleShape& shape) = nullptr;
  PipelineTime (*one_chunk)(const Pipeline& pipeline) = nullptr;
  BubbleOfChunks several_chunks = nullptr;
};
constexpr ScheduleTime kNoPipeline = {};
constexpr ScheduleTime kGpipe = {.is_steady =
                                     [](const ScheduleShape& shape) {
                                       return shape.vpp == 1 || shape.num_microbatches >= shape.pp;
                                     },
                                 .one_chunk = gpipe_time,
                                 .several_chunks = interleaved_bubble_s};
constexpr ScheduleTime kOneFOneB = {.one_chunk = one_f_one_b_time};
constexpr ScheduleTime kInterleaved = {.is_steady = fills_groups,
                                       .one_chunk = one_f_one_b_time,
                                       .several_chunks = interleaved_bubble_s};
constexpr ScheduleTime kZeroBubbleH1 = {
    .is_steady = [](const ScheduleShape& shape) { return shape.num_microbatches > shape.pp; },
    .one_chunk = zero_bubble_h1_time};
constexpr ScheduleTime kInterleavedZeroBubble = {.is_steady = fills_groups,
                                                 .one_chunk = zero_bubble_h1_time,
                                                 .several_chunks = interleaved_zero_bubble_s};
constexpr ScheduleTime kZeroBubbleV = {
    .is_steady =
        [](const ScheduleShape& shape) { return shape.num_microbatches >= 2 * shape.pp - 1; },
    .several_chunks = v_bubble_s};
constexpr std::array kTimes = {kNoPipeline,  kGpipe,        kOneFOneB,
                               kInterleaved, kZeroBubbleH1, kInterleavedZeroBubble,
                               kZeroBubbleV};
static_assert(kTimes.size() == kSchedules.size());

}  // namespace

std::size_t PipelineLayout::rank_kind(std::int64_t pp_rank) const {
  const auto after = std::ranges::find_if(
      runs, [&](const RankRun& run) { return pp_rank < run.first + run.count; });
  return after->kind;
}

PipelineLayout pipeline_layout(const ScheduleShape& shape, std::vector<std::size_t> chunk_kinds) {
  PipelineLayout layout;
  layout.chunks.assign(std::ranges::max(chunk_kinds) + 1, 0);
  for (const std::size_t kind : chunk_kinds) { ++layout.chunks[kind]; }
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    std::vector<std::int64_t> counts(layout.chunks.size(), 0);
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      ++counts[chunk_kinds[static_cast<std::size_t>(position_of(shape, rank, chunk))]];
    }
    const auto same = std::ranges::find(layout.rank_chunks, counts);
    const std::size_t kind = static_cast<std::size_t>(same - layout.rank_chunks.begin());
    if (same == layout.rank_chunks.end()) {
      layout.rank_chunks.push_back(std::move(counts));
    }
    if (layout.runs.empty() || layout.runs.back().kind != kind) {
      layout.runs.push_back({.first = rank, .count = 0, .kind = kind});
    }
    ++layout.runs.back().count;
  }
  layout.chunk_kinds = std::move(chunk_kinds);
  return layout;
}

PipelineTime pipeline_time(const ScheduleShape& shape, const PipelineLayout& layout,
                           std::span<const ChunkTime> kinds) {
  const Pipeline pipeline{.shape = shape, .layout = layout, .kinds = kinds};
  if (shape.pp == 1) {
    return {.total_s = pipeline.microbatches() * pipeline.total_work().total_s(),
            .critical_rank = 0};
  }
  const ScheduleTime& time = kTimes[static_cast<std::size_t>(shape.schedule)];
  if (time.is_steady != nullptr && !time.is_steady(shape)) {
    return walked_time(pipeline);
  }
  if (shape.vpp > 1 && time.several_chunks != nullptr) {
    return several_chunks_time(pipeline, time.several_chunks);
  }
  if (shape.vpp == 1 && time.one_chunk != nullptr) {
    return time.one_chunk(pipeline);
  }
  throw std::logic_error("pipeline_time: the schedule does not run on such a pipeline");
}

PipelineTime pipeline_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  std::vector<ChunkTime> kinds;
  std::vector<std::size_t> chunk_kinds;
  for (const ChunkTime& chunk : chunks) {
    const auto same = std::ranges::find(kinds, chunk);
    chunk_kinds.push_back(static_cast<std::size_t>(same - kinds.begin()));
    if (same == kinds.end()) {
      kinds.push_back(chunk);
    }
  }
  return pipeline_time(shape, pipeline_layout(shape, std::move(chunk_kinds)), kinds);
}

}  // namespace shardplan
