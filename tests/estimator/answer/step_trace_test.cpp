// The timeline of a step: its end is the predicted one, nothing is lost and nothing overlaps.
#include "estimator/answer/step_trace.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "data/read/library.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

struct Example {
  Example(Schedule schedule, std::int64_t pp, std::int64_t vpp, std::int64_t microbatches) {
    const Library library;
    job = {.model = library.model("llama3-8b").model,
           .cluster = library.cluster("1x8-h200"),
           .profile = library.framework("megatron"),
           .sequence_length = 4096,
           .global_batch = microbatches * 8 / pp};
    plan.pp = pp;
    plan.vpp = vpp;
    plan.zero = 1;
    plan.schedule = schedule;
  }
  Job job;
  Plan plan;
};

struct Family {
  Schedule schedule;
  std::int64_t vpp;
};
constexpr Family kFamilies[] = {{Schedule::kGpipe, 1},
                                {Schedule::k1F1B, 1},
                                {Schedule::kZbH1, 1},
                                {Schedule::kInterleaved1F1B, 2},
                                {Schedule::kInterleavedZeroBubble, 2},
                                {Schedule::kZbv, 2}};

double last_end_s(const StepTrace& trace) {
  return std::ranges::max(trace.spans, {}, &TraceSpan::end_s).end_s;
}

bool is_near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({std::abs(a), std::abs(b), 1e-3});
}

// What takes time by itself: not the actions and blocks around it, not what hides behind them.
bool is_leaf(const TraceSpan& span) {
  if (span.lane == TraceLane::kHidden || span.name.ends_with("hidden in the step")) {
    return false;
  }
  return span.lane != TraceLane::kCompute || span.depth == 2 || span.name == "optimizer";
}

void check_laws(const Job& job, const Plan& plan, const StepTrace& trace) {
  CHECK(is_near(last_end_s(trace), trace.total_s));
  CHECK(is_near(trace.total_s, trace.predicted_s + trace.beyond_s));
  CHECK(is_near(trace.predicted_s, estimate_step_time(job, plan).total_s));
  CHECK(trace.beyond_s >= -1e-9 * trace.total_s);
  REQUIRE(std::ssize(trace.stages) == plan.pp);
  std::vector<double> busy_s(trace.stages.size(), 0);
  for (const TraceSpan& span : trace.spans) {
    busy_s[static_cast<std::size_t>(span.stage)] += is_leaf(span) ? span.end_s - span.start_s : 0;
  }
  for (std::size_t stage = 0; stage < trace.stages.size(); ++stage) {
    const StageTrace& summary = trace.stages[stage];
    CHECK(is_near(summary.busy_s + summary.bubble_s, trace.total_s));
    CHECK(summary.bubble_s >= -1e-9 * trace.total_s);
    if (summary.shown == summary.actions) {
      CHECK(is_near(busy_s[stage], summary.busy_s));
    }
  }
}

// On every lane of a stage each span lies inside one that is open, or after all of them.
std::int64_t count_overlaps(const StepTrace& trace) {
  std::map<std::pair<std::int64_t, TraceLane>, std::vector<double>> open;  // ends
  std::int64_t overlaps = 0;
  constexpr double kRounding = 1e-12;
  for (const TraceSpan& span : trace.spans) {
    std::vector<double>& ends = open[{span.stage, span.lane}];
    while (!ends.empty() && ends.back() <= span.start_s + kRounding) { ends.pop_back(); }
    overlaps += !ends.empty() && span.end_s > ends.back() + kRounding ? 1 : 0;
    ends.push_back(span.end_s);
  }
  return overlaps;
}

TEST_CASE("the last span of every schedule ends with the step, and every stage is busy or waits") {
  for (const Family& family : kFamilies) {
    CAPTURE(family.schedule);
    Example example(family.schedule, 4, family.vpp, 16);
    example.plan.tp = 2;
    example.plan.sequence_parallel = true;
    check_laws(example.job, example.plan, step_trace(example.job, example.plan));
  }
}

// What the ends of the model make uneven, the closed form may miss.
TEST_CASE("of even stages the walk ends where the closed form says, in every schedule") {
  for (const Family& family : kFamilies) {
    CAPTURE(family.schedule);
    Example example(family.schedule, 4, family.vpp, 16);
    example.job.model.vocab = 128;  // next to no head
    const StepTrace trace = step_trace(example.job, example.plan);
    CHECK(std::abs(trace.beyond_s) < 2e-3 * trace.total_s);
  }
}

TEST_CASE("GPipe and one stage are exact with any ends") {
  for (const std::int64_t pp : {1, 4}) {
    const Example example(pp == 1 ? Schedule::kNone : Schedule::kGpipe, pp, 1, 8);
    const StepTrace trace = step_trace(example.job, example.plan);
    CHECK(is_near(trace.total_s, trace.predicted_s));
  }
}

TEST_CASE("random plans of all profiles keep the laws, and no lane has two things at once") {
  RandomJobs random(Library(), 13);
  std::int64_t traced = 0;
  while (traced < 150) {
    const RandomCase drawn = random.next();
    if (num_actions(drawn.job, drawn.plan) > 2000) {
      continue;
    }
    ++traced;
    const StepTrace trace = step_trace(drawn.job, drawn.plan);
    check_laws(drawn.job, drawn.plan, trace);
    CHECK(count_overlaps(trace) == 0);
  }
}

TEST_CASE("memory reaches the peaks that the estimate names") {
  for (const Family& family : kFamilies) {
    CAPTURE(family.schedule);
    const Example example(family.schedule, 4, family.vpp, 16);
    const StepTrace trace = step_trace(example.job, example.plan);
    const PlanPieces pieces = plan_pieces(example.job, example.plan);
    for (std::int64_t stage = 0; stage < 4; ++stage) {
      std::int64_t most = 0;
      for (const MemoryPoint& point : trace.memory) {
        most = std::max(most, point.stage == stage ? point.bytes : 0);
      }
      const StagePeaks& peaks = pieces.stages[static_cast<std::size_t>(stage)].peaks;
      std::int64_t expected = 0;
      for (std::size_t moment = static_cast<std::size_t>(MomentKind::kForward);
           moment < peaks.moments.size(); ++moment) {
        expected = std::max(expected, peaks.moments[moment].bytes);
      }
      CHECK(most == expected);
    }
  }
}

TEST_CASE("thousands of microbatches show their first and last actions and the same times") {
  const Example example(Schedule::k1F1B, 4, 1, 3000);
  const StepTrace trace = step_trace(example.job, example.plan, 4000);
  CHECK(trace.spans.size() < 5000);
  for (const StageTrace& stage : trace.stages) {
    CHECK(stage.actions == 6000);
    CHECK(stage.shown >= 8);
    CHECK(stage.shown < 100);
  }
  check_laws(example.job, example.plan, trace);
  CHECK(count_overlaps(trace) == 0);
}

TEST_CASE("an action is named by its microbatch and chunk, and holds its blocks") {
  const Example example(Schedule::kInterleaved1F1B, 4, 2, 8);
  const StepTrace trace = step_trace(example.job, example.plan);
  const TraceSpan& action = trace.spans.at(0);
  CHECK(action.name == "forward microbatch 0 chunk 0");
  CHECK(action.depth == 0);
  CHECK(trace.spans.at(1).name == "embedding");
  const auto layers = std::ranges::find(trace.spans, "4 x dense layer", &TraceSpan::name);
  REQUIRE(layers != trace.spans.end());
  CHECK(layers->depth == 1);
  CHECK(layers->count == 4);
  const TraceSpan& product = layers[3];
  CHECK(product.name == "projections: product 4096x6144x4096");
  CHECK(product.flops == 4 * 2.0 * 4096 * 6144 * 4096);
}

}  // namespace
}  // namespace shardplan
