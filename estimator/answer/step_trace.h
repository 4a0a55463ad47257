// The timeline of one optimizer step: one rank of every pipeline stage, what it computes and what
// it sends, as the schedule walked action by action has it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

enum class TraceLane {
  kCompute,
  kTensorParallel,
  kContextParallel,
  kExpertParallel,
  kDataParallel,
  kSends,
  kHidden,
};
inline constexpr std::array<NamedValue<TraceLane>, 7> kTraceLanes = {{
    {.value = TraceLane::kCompute, .name = "compute"},
    {.value = TraceLane::kTensorParallel, .name = "tensor parallel, visible"},
    {.value = TraceLane::kContextParallel, .name = "context parallel, visible"},
    {.value = TraceLane::kExpertParallel, .name = "expert parallel, visible"},
    {.value = TraceLane::kDataParallel, .name = "data parallel"},
    {.value = TraceLane::kSends, .name = "sends"},
    {.value = TraceLane::kHidden, .name = "communication behind compute"},
}};
constexpr const auto& names_of(TraceLane) {
  return kTraceLanes;
}

// Spans of one lane of one stage are nested or apart. On the compute lane: an action, its runs of
// equal blocks, and what these are made of, in a fixed order, not in that of the kernels.
struct TraceSpan {
  std::int64_t stage = 0;
  TraceLane lane = TraceLane::kCompute;
  std::int64_t depth = 0;  // 0: an action, or what stands for itself
  std::string name = {};
  double start_s = 0;
  double end_s = 0;
  std::int64_t chunk = -1;  // -1: none
  std::int64_t microbatch = -1;
  std::int64_t count = 1;  // equal blocks or actions that this one span stands for
  double flops = 0;        // 0: not counted
};

// The most that is allocated during what begins here.
struct MemoryPoint {
  std::int64_t stage = 0;
  double time_s = 0;
  std::int64_t bytes = 0;
};

struct StageTrace {
  double busy_s = 0;    // its actions, sends and visible communication included, and its update
  double bubble_s = 0;  // total_s less busy_s
  std::int64_t actions = 0;
  std::int64_t shown = 0;  // of the actions; the others are one span
};

struct StepTrace {
  std::vector<TraceSpan> spans = {};     // by stage, then as they begin
  std::vector<MemoryPoint> memory = {};  // none of a profile whose memory is one formula
  std::vector<StageTrace> stages = {};
  double total_s = 0;      // end of the last span
  double predicted_s = 0;  // StepTime::total_s
  // total_s - predicted_s: 0 where the closed form of the schedule is exact, as for even stages;
  // elsewhere what the walk takes longer. Where it takes less, the stages wait at its end.
  double beyond_s = 0;
};

// About as many spans as a trace may have. Beyond them every stage shows the first of its actions
// and the last ones, at least eight.
inline constexpr std::int64_t kMostSpans = 200'000;

// The plan must be valid. Walks every action of every stage.
StepTrace step_trace(const Job& job, const Plan& plan, std::int64_t most_spans = kMostSpans);

// How many actions that would be at most.
std::int64_t num_actions(const Job& job, const Plan& plan);

}  // namespace shardplan
