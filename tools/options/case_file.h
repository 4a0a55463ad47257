// Files of case lines, one line at a time.
#pragma once

#include <cstdint>
#include <string>

#include "data/read/case_line.h"
#include "data/read/text_file.h"
#include "tools/commands/prediction.h"

namespace shardplan {

struct CaseText {
  std::string file;  // as messages name it
  std::int64_t line = 0;
  std::string text;

  std::string place() const { return file + ":" + std::to_string(line); }
};

// "-" is standard input. InputError for a file that cannot be read.
class CaseFile {
 public:
  // Reads the first line: who writes a heading next knows that there is a file that can be read.
  explicit CaseFile(const std::string& path);
  // The next line that is not blank; false at the end.
  bool next(CaseText& line);

 private:
  bool read(CaseText& line);

  TextFile file_;
  std::int64_t line_ = 0;
  CaseText first_ = {};
  bool has_first_ = false;
};

// What the estimator says about a case at its own card; a framework without a profile is an answer.
Prediction predict_case(const Case& question);

// Why no step time can be estimated. Time needs less of a profile than memory does: a field that
// only the memory rows lack does not refuse a plan.
struct TimeRefusal {
  std::string reason;           // "": there is a step time
  bool only_of_memory = false;  // there is one, and no estimate of the memory
};
TimeRefusal why_no_step_time(const Case& question);

}  // namespace shardplan
