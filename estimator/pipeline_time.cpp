// Letters: p ranks, v chunks a rank, m microbatches, r a rank; f, b, w forward, input gradient and
// weight gradient of one unit (chunk x microbatch), t = f + b + w.
//
// A schedule is a graph of actions; its length is the longest path. Long paths stay on one rank r
// for m * t_r and add what it costs to get there, to wait for a round trip through the later ranks,
// and to get out. Each formula below is the longest of such paths; the walk confirms them.
#include "estimator/pipeline_time.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace shardplan {
namespace {

ChunkTime sum(const ChunkTime& a, const ChunkTime& b) {
  return {.forward_s = a.forward_s + b.forward_s,
          .backward_input_s = a.backward_input_s + b.backward_input_s,
          .backward_weight_s = a.backward_weight_s + b.backward_weight_s};
}

// The work of one microbatch on one rank.
ChunkTime rank_work(const ScheduleShape& shape, std::span<const ChunkTime> chunks,
                    std::int64_t rank) {
  ChunkTime work;
  for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
    work = sum(work, chunks[static_cast<std::size_t>(position_of(shape, rank, chunk))]);
  }
  return work;
}

ChunkTime total_work(std::span<const ChunkTime> chunks) {
  ChunkTime work;
  for (const ChunkTime& chunk : chunks) { work = sum(work, chunk); }
  return work;
}

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
PipelineTime gpipe_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  const double m = static_cast<double>(shape.num_microbatches);
  double slowest_forward = 0;
  double slowest_backward = 0;
  LongestLine slowest;
  for (std::size_t r = 0; r < chunks.size(); ++r) {
    slowest.offer(static_cast<std::int64_t>(r), chunks[r].total_s());
    slowest_forward = std::max(slowest_forward, chunks[r].forward_s);
    slowest_backward =
        std::max(slowest_backward, chunks[r].backward_input_s + chunks[r].backward_weight_s);
  }
  return {.total_s = total_work(chunks).total_s() + (m - 1) * (slowest_forward + slowest_backward),
          .critical_rank = slowest.longest().critical_rank};
}

// Line r of 1F1B. Its first backward waits for a round trip through the later ranks, less the
// further forwards of its warm-up; its last backward likewise, less as many backwards. Where the
// warm-up takes all microbatches, all forwards precede all backwards and there is one round trip.
PipelineTime one_f_one_b_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  const double m = static_cast<double>(shape.num_microbatches);
  const std::int64_t warmup_per_hop = shape.schedule == Schedule::kInterleaved1F1B ? 2 : 1;
  double before = 0;
  double after = total_work(chunks).total_s();
  LongestLine line;
  for (std::int64_t r = 0; r < shape.pp; ++r) {
    const ChunkTime& time = chunks[static_cast<std::size_t>(r)];
    const double f = time.forward_s;
    const double b = time.backward_input_s + time.backward_weight_s;
    const std::int64_t warmup = warmup_per_hop * (shape.pp - r - 1);
    after -= f + b;
    if (shape.num_microbatches > warmup + 1) {
      line.offer(r, before + m * (f + b) + std::max(0.0, after - static_cast<double>(warmup) * f) +
                        std::max(0.0, after - static_cast<double>(warmup) * b));
    } else {
      line.offer(r, before + std::max(m * (f + b), after + std::max(f + m * b, m * f + b)));
    }
    before += f + b;
  }
  return line.longest();
}

// Line r of zero-bubble H1, m > p. It is entered by the first forward or by the first input
// gradient (after p - r forwards), waits for the last round trip less p - r - 1 input and weight
// gradients, and is left upwards by the last input gradient: rank q < r then still has q + 1 weight
// gradients to do, r itself has r + 1. Even stages: (p - 1) * max(f, b, f + b - w).
PipelineTime zero_bubble_h1_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  const double m = static_cast<double>(shape.num_microbatches);
  const ChunkTime all = total_work(chunks);
  ChunkTime before;
  double upwards = 0;  // longest way out through an earlier rank
  LongestLine line;
  for (std::int64_t r = 0; r < shape.pp; ++r) {
    const ChunkTime& time = chunks[static_cast<std::size_t>(r)];
    const auto [f, b, w] = time;
    const double hops = static_cast<double>(shape.pp - r - 1);
    const double later_f = all.forward_s - before.forward_s - f;
    const double later_b = all.backward_input_s - before.backward_input_s - b;
    const double own_weights = static_cast<double>(r + 1) * w;
    const double entry = before.forward_s + std::max(0.0, later_f + later_b - hops * f);
    const double wait = std::max(0.0, later_f + later_b - hops * (b + w));
    const double exit = std::max(0.0, upwards - own_weights);
    line.offer(r, entry + m * time.total_s() + wait + exit);
    upwards = b + std::max(upwards, own_weights);
    before = sum(before, time);
  }
  return line.longest();
}

// Bubbles of even chunks; `others` is the work of the p - 1 other ranks, one chunk each.

// Interleaved 1F1B: (p - 1) * t (arXiv 2104.04473 section 2.2).
double interleaved_bubble_s(const ChunkTime& others) {
  return others.total_s();
}

// Interleaved zero bubble: (p - 1) * max(f, b, f + b - w), as for H1 with chunks for stages.
double interleaved_zero_bubble_s(const ChunkTime& others) {
  const auto [f, b, w] = others;
  return std::max({f, b, f + b - w});
}

// Zero-bubble V, m >= 2 p - 1: the longest of eight paths, found by differentiating the walk; with
// f = b = w it is (p - 1) * f, the start of the last rank.
double v_bubble_s(const ChunkTime& others, double hops) {
  const auto [f, b, w] = others;
  const double one = 1 / hops;
  return std::max({b * one + w * (1 - one), f * one + w * (1 - one), b, 2 * (b - w),
                   f * (2 - one) - b * (1 - one), f * (2 - one) + b * one - 2 * w,
                   2 * f - b - w * one, 2 * f - w * (2 + one)});
}

double even_bubble_s(const ScheduleShape& shape, const ChunkTime& others) {
  switch (shape.schedule) {
    case Schedule::kGpipe:
    case Schedule::kInterleaved1F1B: return interleaved_bubble_s(others);
    case Schedule::kInterleavedZeroBubble: return interleaved_zero_bubble_s(others);
    case Schedule::kZbv: return v_bubble_s(others, static_cast<double>(shape.pp - 1));
    case Schedule::kNone:
    case Schedule::k1F1B:
    case Schedule::kZbH1: break;
  }
  throw std::logic_error("even_bubble_s: one chunk a rank has a formula of its own");
}

// Several chunks a rank: line r works m * t_r and waits as the other ranks' mean chunks make it.
PipelineTime several_chunks_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  const double m = static_cast<double>(shape.num_microbatches);
  const double v = static_cast<double>(shape.vpp);
  const ChunkTime all = total_work(chunks);
  LongestLine line;
  for (std::int64_t r = 0; r < shape.pp; ++r) {
    const ChunkTime own = rank_work(shape, chunks, r);
    const ChunkTime others = {
        .forward_s = (all.forward_s - own.forward_s) / v,
        .backward_input_s = (all.backward_input_s - own.backward_input_s) / v,
        .backward_weight_s = (all.backward_weight_s - own.backward_weight_s) / v};
    line.offer(r, m * own.total_s() + even_bubble_s(shape, others));
  }
  return line.longest();
}

// Too few microbatches for a steady state, or a last group that is not full: walk the schedule,
// shortened by whole groups of the slowest rank's work.
PipelineTime walked_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  LongestLine slowest;
  for (std::int64_t r = 0; r < shape.pp; ++r) {
    slowest.offer(r, rank_work(shape, chunks, r).total_s());
  }
  const ScheduleShape shorter = shortest_equivalent(shape);
  const double left_out = static_cast<double>(shape.num_microbatches - shorter.num_microbatches);
  return {.total_s = walk_schedule(shorter, chunks).total_s + left_out * slowest.longest().total_s,
          .critical_rank = slowest.longest().critical_rank};
}

bool has_steady_state(const ScheduleShape& shape) {
  switch (shape.schedule) {
    case Schedule::kNone:
    case Schedule::k1F1B: return true;
    case Schedule::kGpipe: return shape.vpp == 1 || shape.num_microbatches >= shape.pp;
    case Schedule::kZbH1: return shape.num_microbatches > shape.pp;
    case Schedule::kZbv: return shape.num_microbatches >= 2 * shape.pp - 1;
    case Schedule::kInterleaved1F1B:
    case Schedule::kInterleavedZeroBubble:
      return shape.num_microbatches >= shape.pp &&
             shape.num_microbatches % microbatch_group(shape) == 0;
  }
  throw std::logic_error("has_steady_state: unknown schedule");
}

}  // namespace

PipelineTime pipeline_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  if (shape.pp == 1) {
    return {.total_s = static_cast<double>(shape.num_microbatches) * total_work(chunks).total_s(),
            .critical_rank = 0};
  }
  if (!has_steady_state(shape)) {
    return walked_time(shape, chunks);
  }
  if (shape.vpp > 1) {
    return several_chunks_time(shape, chunks);
  }
  switch (shape.schedule) {
    case Schedule::kGpipe: return gpipe_time(shape, chunks);
    case Schedule::k1F1B:
    case Schedule::kInterleaved1F1B: return one_f_one_b_time(shape, chunks);
    case Schedule::kZbH1:
    case Schedule::kInterleavedZeroBubble: return zero_bubble_h1_time(shape, chunks);
    case Schedule::kNone:
    case Schedule::kZbv: break;
  }
  throw std::logic_error("pipeline_time: the schedule does not run on several ranks");
}

}  // namespace shardplan
