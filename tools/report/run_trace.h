// Timelines of steps that really ran, for Perfetto or chrome://tracing: one process for each rank,
// one thread for each of its streams.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/report/trace_events.h"
#include "tools/report/validate.h"
#include "validator/program/program.h"

namespace shardplan {

// Runs of one batch, in one file: each begins at zero, its processes after those of the runs
// before.
class RunTraces {
 public:
  // A run that was not ok adds nothing.
  void add(const ValidateAnswer& answer, const std::function<Program(std::int64_t)>& program_of);

  // What the model gives every kind of operation, and what the traced step took; for people.
  std::string account_text() const;

  bool empty() const { return runs_.empty(); }
  std::string text() const;
  // What a reader must know of what is missing, one line; "" if nothing is.
  std::string note() const;

 private:
  void add_rank(std::int64_t process, const Program& program, const OperationTimes& times,
                double origin_s);

  TraceWriter writer_;
  std::string account_;
  nlohmann::ordered_json runs_ = nlohmann::ordered_json::array();
  std::int64_t num_processes_ = 0;
  std::int64_t num_events_ = 0;
  std::int64_t num_left_out_ = 0;  // operations
};

}  // namespace shardplan
