#include "tools/bench/training_profile.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "kernels/pointwise/cuda_check.h"
#include "validator/program/operation_work.h"

namespace shardplan {
namespace {

double elapsed_s(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  return static_cast<double>(milliseconds) / 1e3;
}

std::string name_of(const Operation& op) {
  const View& out = op.out.empty() ? op.in.front() : op.out.front();  // a send writes nothing here
  std::string text = op.label + ' ' + std::to_string(out.rows) + 'x' + std::to_string(out.cols);
  if (op.kind == OpKind::kGemm) {
    text += 'x';
    text += std::to_string(op.attributes.transpose_a ? op.in[0].rows : op.in[0].cols);
    text += op.attributes.accumulate ? " added" : "";
  }
  if (op.kind == OpKind::kAttentionForward || op.kind == OpKind::kAttentionBackward) {
    const View& keys = op.in[op.kind == OpKind::kAttentionForward ? 1 : 2];
    text += " on " + std::to_string(keys.rows);
  }
  return text;
}

struct Total {
  std::int64_t count = 0;
  double seconds = 0;
  double fastest_s = std::numeric_limits<double>::infinity();
  double slowest_s = 0;
  double flops = 0;
  double bytes = 0;
};

void print_sorted(const std::map<std::string, Total>& totals, double step_s) {
  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::ranges::sort(
      sorted, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, total] : sorted) {
    std::printf("%-62s %5lld %9.3f ms %6.2f %%  %7.3f to %7.3f", name.c_str(),
                static_cast<long long>(total.count), total.seconds * 1e3,
                100 * total.seconds / step_s, total.fastest_s * 1e3, total.slowest_s * 1e3);
    if (total.flops > 0) {
      std::printf(" %8.1f TFLOP/s\n", total.flops / total.seconds / 1e12);
    } else {
      std::printf(" %8.3f TB/s\n", total.bytes / total.seconds / 1e12);
    }
  }
}

void print_gaps(const StepGaps& gaps) {
  const auto print = [&](const std::string& name, std::int64_t count, double seconds) {
    std::printf("%-62s %5lld %9.3f ms %6.2f %%\n", name.c_str(), static_cast<long long>(count),
                seconds * 1e3, 100 * seconds / gaps.step_s);
  };
  print("between operations", 0, gaps.all_s);
  for (const WaitedFor& wait : gaps.waits) {
    print("  waiting for " + wait.label, wait.count, wait.seconds);
  }
  print("communication", 0, gaps.communication_s);
  print("  beside operations", 0, gaps.hidden_s);
  std::printf("step with these events %.4f s\n", gaps.step_s);
}

}  // namespace

TrainingProfile::TrainingProfile(const Program& program, int device) : program_(program) {
  CUDA_CHECK(cudaSetDevice(device));
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    CUDA_CHECK(cudaEventCreate(&begins_.emplace_back()));
    CUDA_CHECK(cudaEventCreate(&ends_.emplace_back()));
  }
}

TrainingProfile::~TrainingProfile() {
  for (const auto* events : {&begins_, &ends_}) {
    for (cudaEvent_t event : *events) { cudaEventDestroy(event); }
  }
}

LaunchHooks TrainingProfile::hooks() {
  const auto recorder = [](const std::vector<cudaEvent_t>& events) {
    return [&events](std::int64_t operation, cudaStream_t stream) {
      CUDA_CHECK(cudaEventRecord(events[static_cast<std::size_t>(operation)], stream));
    };
  };
  return {.before = recorder(begins_), .after = recorder(ends_)};
}

std::vector<OperationTime> TrainingProfile::times() const {
  std::vector<OperationTime> times;
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    times.push_back({.begin_s = elapsed_s(begins_.front(), begins_[i]),
                     .end_s = elapsed_s(begins_.front(), ends_[i])});
  }
  return times;
}

void TrainingProfile::print() const {
  std::map<std::string, Total> totals;
  std::map<std::string, Total> kinds;
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& op = program_.operations[i];
    const double seconds = elapsed_s(begins_[i], ends_[i]);
    for (Total* total : {&totals[name_of(op)], &kinds["all " + std::string(name_of(op.kind))]}) {
      ++total->count;
      total->seconds += seconds;
      total->fastest_s = std::min(total->fastest_s, seconds);
      total->slowest_s = std::max(total->slowest_s, seconds);
      total->flops += flops_of(op);
      total->bytes += bytes_of(program_, op);
    }
  }
  const StepGaps gaps = step_gaps(program_, times());
  print_sorted(totals, gaps.step_s);
  print_sorted(kinds, gaps.step_s);
  print_gaps(gaps);
}

}  // namespace shardplan
