#include "tools/report/trace.h"

#include "tools/options/plan_words.h"
#include "tools/report/text.h"
#include "tools/report/trace_events.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

Json arguments_of(const TraceSpan& span) {
  Json arguments = Json::object();
  if (span.microbatch >= 0) {
    arguments["microbatch"] = span.microbatch;
    arguments["chunk"] = span.chunk;
  }
  if (span.count > 1) {
    arguments["count"] = span.count;
  }
  if (span.flops > 0) {
    arguments["flops"] = span.flops;
    arguments["tflops_per_s"] = span.flops / (span.end_s - span.start_s) / 1e12;
  }
  return arguments;
}

Json about(const Question& question, const StepTrace& trace) {
  Json stages = Json::array();
  for (const StageTrace& stage : trace.stages) {
    stages.push_back({{"busy_s", stage.busy_s},
                      {"bubble_s", stage.bubble_s},
                      {"actions", stage.actions},
                      {"shown", stage.shown}});
  }
  return {{"program", kVersionText},
          {"what", "one predicted optimizer step, one rank of every pipeline stage"},
          {"model", question.job.model.name},
          {"cluster", question.job.cluster.name},
          {"framework", question.job.profile.name},
          {"plan", options_of_plan(question.plan)},
          {"step_time_s", trace.predicted_s},
          {"end_s", trace.total_s},
          {"stages", stages}};
}

}  // namespace

std::string step_trace_json(const Question& question, const StepTrace& trace) {
  TraceWriter writer;
  for (std::int64_t stage = 0; stage < std::ssize(trace.stages); ++stage) {
    writer.name_process(stage, "stage " + std::to_string(stage));
    for (const auto& lane : kTraceLanes) {
      writer.name_thread(stage, static_cast<std::int64_t>(lane.value), std::string(lane.name));
    }
  }
  for (const TraceSpan& span : trace.spans) {
    writer.add_complete(span.stage, static_cast<std::int64_t>(span.lane), span.name, span.start_s,
                        span.end_s, arguments_of(span));
  }
  for (const MemoryPoint& point : trace.memory) {
    writer.add_counter(point.stage, "allocated", point.time_s, point.bytes);
  }
  return writer.text(about(question, trace));
}

std::string trace_note(const StepTrace& trace) {
  std::string note;
  const auto add = [&note](const std::string& text) { note += (note.empty() ? "" : "; ") + text; };
  for (const StageTrace& stage : trace.stages) {
    if (stage.shown < stage.actions) {
      add("shows the first and the last of each stage's " + grouped(stage.actions) + " actions, " +
          grouped(stage.shown) + " in all, the others as one event");
      break;
    }
  }
  constexpr double kWorthSaying = 5e-4;
  if (trace.beyond_s > kWorthSaying * trace.predicted_s) {
    add("ends " + percent(trace.beyond_s / trace.predicted_s) +
        " after the step time, which the closed form of the schedule gives for uneven stages");
  }
  return note;
}

}  // namespace shardplan
