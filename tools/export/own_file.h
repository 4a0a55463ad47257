// --export beside --from: the user's own file with only what changes.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Whether the run of the question stands in a file of a kind that is edited, by --from without
// another framework: a launch script of Megatron-LM, a configuration of torchtitan, a Trainer's
// YAML.
bool has_own_file(const ExportRequest& request);

// Whether the run may stand in new files as well, where its own cannot say the plan.
bool may_have_new_files(const ExportRequest& request);

// What stays on the command line beside the edited file.
Options options_beside_own_file(const ExportRequest& request, const Options& options);

// The question that the user's file asks as it is, with `beside`.
Question question_as_it_is(const ExportRequest& request, const Options& beside);

// The file under its own name, changes.diff, and the configurations that it names as they are.
std::vector<ExportedFile> own_files(const ExportRequest& request, const Question& before);

}  // namespace shardplan
