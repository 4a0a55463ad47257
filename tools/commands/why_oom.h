// Why a run went out of memory: its log's messages held against the estimate of its plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/questions/advise.h"
#include "tools/commands/command.h"
#include "tools/commands/prediction.h"
#include "tools/commands/why_oom_levels.h"
#include "tools/from/oom_log.h"
#include "tools/options/question.h"

namespace shardplan {

// A row of the estimate whose size is the one in the message.
struct RowMatch {
  std::int64_t stage = 0;
  Component component = Component::kTemporaries;
  std::string row;
  std::int64_t bytes = 0;  // of the tensor
  bool by_segment = true;  // its segment prints as the message; false: only its own size does
  std::string born;
  RowLevels levels;               // where in the step it fits the message best
  std::int64_t device_bytes = 0;  // the highest of them with what lies outside the allocator
};

// The same failure on one or several ranks.
struct OomDiagnosis {
  OomEvent event;                      // the first of them
  std::vector<std::int64_t> ranks;     // as far as known, in order
  std::vector<std::int64_t> stages;    // that may have failed; all of them where no rank is known
  std::vector<RowMatch> matches;       // nearest to what the message says was allocated first
  std::int64_t eager_score_bytes = 0;  // of each attention score that fills the segment; 0: none do
  std::int64_t small_rows = 0;      // rows of 2 and 20 MiB segments, which say little: not listed
  std::int64_t capacity_bytes = 0;  // of the GPU that failed
  MemoryEstimate memory = {};       // of the plan on such a GPU
};

// One change of the plan that the estimate lets fit, in the words of the command line.
struct PlanChange {
  std::string text;
  JudgedPlan judged;
  std::vector<std::string> settings = {};  // of the first: in the framework's own files
};

struct WhyOomReport {
  Options options;    // that ask for the run
  Question question;  // its capacity is the log's, where its messages agree and none was asked for
  std::int64_t cluster_capacity_bytes = 0;  // as it was asked for
  Prediction prediction;
  std::string log;
  std::vector<OomDiagnosis> diagnoses;  // empty: the log has no such message
  std::int64_t host_oom_line = 0;       // as in OomLog
  std::int64_t wrong_size_line = 0;     // as in OomLog
  std::vector<PlanChange> changes;      // that fit, the fastest first, then more GPUs
  std::int64_t changes_tried = 0;
};

ExitCode run_why_oom(const Arguments& arguments);

}  // namespace shardplan
