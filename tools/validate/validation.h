// A batch of `validate`: one result line for each case line, run now or taken from the journal.
#pragma once

#include <optional>
#include <string>

#include "data/read/library.h"
#include "tools/options/case_file.h"
#include "tools/report/run_trace.h"
#include "tools/report/validate.h"
#include "tools/validate/journal.h"
#include "validator/supervise/supervisor.h"

namespace shardplan {

struct ValidateSettings {
  RunRequest request = {};  // but plan and world size
  std::optional<std::int64_t> simulated_world = std::nullopt;
  std::optional<SizeAxis> find_max = std::nullopt;
  bool runs_anyway = false;  // also what is predicted to run out of memory
  bool checks_against_host = false;
  std::string backend = {};
  std::string data_folder = {};
  std::string command = {};  // the whole command line
  Format format = Format::kTable;
};

class Validation {
 public:
  // Without a journal nothing is kept. All arguments must outlive this.
  Validation(const ValidateSettings& settings, Supervisor& supervisor, const Library& library,
             ValidateJournal* journal, StopFlags& stop);

  // The result line; nothing if a signal has ended the batch.
  std::optional<std::string> result_of(const CaseText& line);
  // Of the runs that were asked for a trace and were ok; not of those that a journal had.
  const RunTraces& traces() const { return traces_; }

 private:
  std::optional<std::string> run_once(const Case& question, const CaseSource& source);
  std::optional<std::string> find_maximum(const Case& question, CaseSource source);
  void run(ValidateAnswer& answer);
  std::string identity_of(const ValidateAnswer& answer, const CaseSource& source) const;
  std::optional<std::string> why_not(const ValidateAnswer& answer) const;
  Prediction predicted(const Case& question) const;
  std::int64_t predicted_maximum(const Case& question, SizeAxis axis, std::int64_t step) const;
  void check_against_host(ValidateAnswer& answer) const;

  const ValidateSettings& settings_;
  Supervisor& supervisor_;
  const Library& library_;
  ValidateJournal* journal_;
  StopFlags& stop_;
  RunTraces traces_;
};

}  // namespace shardplan
