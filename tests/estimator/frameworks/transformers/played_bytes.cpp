#include "tests/estimator/frameworks/transformers/played_bytes.h"

#include <algorithm>
#include <map>

#include "estimator/frameworks/transformers/state.h"
#include "estimator/frameworks/transformers/trainer.h"

namespace shardplan::transformers {

std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan).rows) {
    bytes += row.name == name && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t most_bytes(const Job& job, const Plan& plan, MomentKind moment,
                        std::string_view name) {
  const PlayedRun run = trainer_run(job, plan, 2);
  std::map<std::int64_t, std::int64_t> bytes_of_tensor;
  std::int64_t held = 0;
  std::int64_t most = 0;
  std::size_t next_moment = 0;
  std::size_t label = 0;
  MomentKind now = MomentKind::kStartUp;
  for (std::size_t i = 0; i < run.events.size(); ++i) {
    const AllocationEvent& event = run.events[i];
    while (next_moment < run.moments.size() &&
           run.moments[next_moment].event <= static_cast<std::int64_t>(i)) {
      now = run.moments[next_moment++].moment;
    }
    if (event.bytes > 0) {
      while (label + 1 < run.labels.size() && run.labels[label + 1].after_id < event.id) {
        ++label;
      }
      bytes_of_tensor[event.id] = run.labels[label].label->name == name ? event.bytes : 0;
    }
    held += event.bytes > 0 ? bytes_of_tensor[event.id] : -bytes_of_tensor[event.id];
    most = now == moment ? std::max(most, held) : most;
  }
  return most;
}

std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name) {
  return held_bytes(job, plan, Phase::kIdle, name);
}

std::int64_t peak_of(const Job& job, const Plan& plan, MomentKind moment) {
  return state_of_stage(job, plan).played->moments[static_cast<std::size_t>(moment)];
}

}  // namespace shardplan::transformers
