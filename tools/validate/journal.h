// The journal of `validate`: result lines by what was run, so that a batch can go on where it
// stopped.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "validator/supervise/journal.h"

namespace shardplan {

class ValidateJournal {
 public:
  // InputError for a file that holds records, if it is not to be resumed, or records of something
  // else; EnvironmentError for one that cannot be written.
  ValidateJournal(const std::string& path, bool resumes);

  // The result line of a finished run of this identity, each record once: equal lines of a batch
  // are as many runs.
  std::optional<std::string> finished(const std::string& identity);
  void append(const std::string& identity, const std::string& result_line);

 private:
  Journal journal_;
  std::map<std::string, std::vector<std::string>> results_;  // by key
};

}  // namespace shardplan
