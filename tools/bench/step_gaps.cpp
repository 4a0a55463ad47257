#include "tools/bench/step_gaps.h"

#include <algorithm>
#include <map>

namespace shardplan {
namespace {

using Intervals = std::vector<OperationTime>;

// The same moments as intervals that do not overlap, in order.
Intervals merged(Intervals intervals) {
  std::ranges::sort(intervals, {}, &OperationTime::begin_s);
  Intervals apart;
  for (const OperationTime& interval : intervals) {
    if (apart.empty() || apart.back().end_s < interval.begin_s) {
      apart.push_back(interval);
    } else {
      apart.back().end_s = std::max(apart.back().end_s, interval.end_s);
    }
  }
  return apart;
}

double total_s(const Intervals& apart) {
  double seconds = 0;
  for (const OperationTime& interval : apart) { seconds += interval.end_s - interval.begin_s; }
  return seconds;
}

// Of moments in both; each list in order and without overlaps.
double common_s(const Intervals& a, const Intervals& b) {
  double seconds = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const double begin_s = std::max(a[i].begin_s, b[k].begin_s);
    const double end_s = std::min(a[i].end_s, b[k].end_s);
    seconds += std::max(0.0, end_s - begin_s);
    (a[i].end_s < b[k].end_s ? i : k) += 1;
  }
  return seconds;
}

// By event, the operation that records it.
std::vector<std::size_t> recorders(const Program& program) {
  std::vector<std::size_t> by_event(static_cast<std::size_t>(program.num_events));
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (const std::int64_t event = program.operations[i].records; event >= 0) {
      by_event[static_cast<std::size_t>(event)] = i;
    }
  }
  return by_event;
}

class GapSums {
 public:
  GapSums(const Program& program, const std::vector<OperationTime>& times)
      : program_(program), times_(times), recorders_(recorders(program)) {}

  // Operation i of the compute stream follows a gap that began then.
  void add(std::size_t i, double begin_s) {
    std::string label = "the host";
    double end_s = begin_s;
    for (const std::int64_t event : program_.operations[i].waits) {
      const std::size_t awaited = recorders_[static_cast<std::size_t>(event)];
      if (times_[awaited].end_s > end_s) {
        end_s = times_[awaited].end_s;
        label = program_.operations[awaited].label;
      }
    }
    add(label, times_[i].begin_s - begin_s);
  }
  void add(const std::string& label, double seconds) {
    all_s_ += std::max(0.0, seconds);
    if (seconds > kLongGapSeconds) {
      WaitedFor& sum = sums_[label];
      sum.label = label;
      ++sum.count;
      sum.seconds += seconds;
    }
  }
  double all_s() const { return all_s_; }
  std::vector<WaitedFor> sorted() const {
    std::vector<WaitedFor> list;
    for (const auto& [label, sum] : sums_) { list.push_back(sum); }
    std::ranges::stable_sort(list, std::greater{}, &WaitedFor::seconds);
    return list;
  }

 private:
  const Program& program_;
  const std::vector<OperationTime>& times_;
  std::vector<std::size_t> recorders_;
  std::map<std::string, WaitedFor> sums_;
  double all_s_ = 0;
};

}  // namespace

StepGaps step_gaps(const Program& program, const std::vector<OperationTime>& times) {
  Intervals compute;
  Intervals communication;
  GapSums gaps(program, times);
  const double begin_s = std::ranges::min_element(times, {}, &OperationTime::begin_s)->begin_s;
  const double end_s = std::ranges::max_element(times, {}, &OperationTime::end_s)->end_s;
  double done_s = begin_s;
  for (const std::int64_t launched : launch_order(program)) {
    const auto i = static_cast<std::size_t>(launched);
    const Operation& op = program.operations[i];
    if (op.stream == Stream::kCompute) {
      gaps.add(i, done_s);
      done_s = times[i].end_s;
      compute.push_back(times[i]);
    } else if (is_communication(op.kind)) {
      communication.push_back(times[i]);
    }
  }
  gaps.add("the end", end_s - done_s);
  const Intervals talking = merged(std::move(communication));
  return {.step_s = end_s - begin_s,
          .all_s = gaps.all_s(),
          .waits = gaps.sorted(),
          .communication_s = total_s(talking),
          .hidden_s = common_s(talking, merged(std::move(compute)))};
}

}  // namespace shardplan
