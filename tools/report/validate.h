// What `validate` says about one run: a result line, and what tables show of result lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/commands/prediction.h"
#include "tools/report/report.h"
#include "tools/validate/case.h"
#include "validator/supervise/supervisor.h"

namespace shardplan {

// Numbers of every measured step, held against those of the host backend in float64.
struct HostComparison {
  std::vector<double> host = {};
  double worst = 0;  // relative difference of a step; no number where one of the two is none
  double tolerance = 0;
};
struct HostCheck {
  HostComparison losses = {};
  HostComparison gradient_norms = {};
};
HostCheck compared(const HostSteps& host, const std::vector<RankResult>& ranks,
                   const HostTolerance& tolerance);

// One run of one case.
struct ValidateAnswer {
  std::string case_text = {};  // the line, "" if it cannot be read
  std::string id = {};
  std::int64_t line = 0;
  std::string command = {};                     // the whole command line
  std::string backend = {};                     // "host"
  std::optional<Case> question = std::nullopt;  // as it was run
  std::optional<SizeAxis> axis = std::nullopt;  // what --find-max has changed
  Prediction prediction = {};
  RunRequest request = {};
  RunOutcome outcome = {};
  bool was_predicted = false;       // out of memory by prediction only: nothing was run
  std::string operation_name = {};  // that the failed rank was at
  std::optional<HostCheck> host_check = std::nullopt;
};

// The case line with `predicted` and `measured`: can be read again as a case.
std::string validate_json(const ValidateAnswer& answer);

// The real boundary: of sizes that run, the largest, and the next, which does not.
struct RealMaximum {
  SizeAxis axis = SizeAxis::kMicroBatch;
  std::int64_t value = 0;  // 0: not even the smallest runs
  std::int64_t next = 0;   // 0: none was tried
  std::int64_t predicted = 0;
  RunStatus next_status = RunStatus::kOk;
};
std::string with_maximum(const std::string& result_line, const RealMaximum& maximum);

double upper_median_of(std::vector<double> values);  // a step that was measured; 0 of none

// What tables and exit codes need of a result line, whether it is new or from a journal.
struct ResultSummary {
  std::string id = {};
  std::string framework;
  std::string predicted_status;
  std::int64_t predicted_bytes = 0;  // device_used of the worst stage; 0: none
  std::optional<RunStatus> status;   // nothing: the line was bad, nothing was run
  std::string reason;
  std::int64_t measured_bytes = 0;  // device_used of the fullest rank; 0: none
  double step_s = 0;                // median
  double tokens_per_s_per_gpu = 0;
  double loss = 0;  // of the last step
  bool host_check_failed = false;
  std::string attention = {};  // what it ran on; empty: on the host
  std::string maximum;         // "micro_batch 7 runs, 8 is out of memory, 7 predicted"
};

}  // namespace shardplan
