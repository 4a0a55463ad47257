// Timelines of a step as files for Perfetto or chrome://tracing.
#pragma once

#include <string>

#include "estimator/answer/step_trace.h"
#include "tools/options/question.h"

namespace shardplan {

// One process for each pipeline stage, one thread for each lane, the allocated bytes as a counter.
std::string step_trace_json(const Question& question, const StepTrace& trace);

// What a reader of the trace must know, one line; "" if there is nothing.
std::string trace_note(const StepTrace& trace);

}  // namespace shardplan
