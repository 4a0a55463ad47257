// `--export DIR`: the files that launch a plan, in the framework's own words.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// What a framework's files are, and how they are read back.
struct ExportedRun {
  std::vector<ExportedFile> files;
  std::string launch = "launch.sh";     // the file that starts the run
  std::vector<std::string> facts = {};  // KEY=VALUE that the framework has no setting for: versions
                                        // of libraries, loads of experts
  Options beside = {};                  // what else stands on the command line that reads it
  std::string note = {};                // why the run does not stand in the user's own file
};

// InputError where the framework has no files, or cannot express the plan. `options` say the
// cluster.
ExportedRun exported_run(const ExportRequest& request, const Options& options);

// The model's file with what the user set in it; empty where the run has sizes of its own.
ExportedModel exported_model(const Options& options, const Question& question,
                             const Library& library);

// Writes the files to the folder, complete or not at all, once they were read back with the same
// prediction. InputError where the framework cannot express the plan.
ExportedRun write_run(const ExportRequest& request, const Options& options,
                      const std::string& folder);

// --export of a command, where it is given, and says what was written; of a plan that is not valid
// nothing is. `command`: what asks the same question.
void export_answer(const Options& options, const Question& question, const std::string& command,
                   const Library& library);

}  // namespace shardplan
