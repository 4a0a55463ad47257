// --export beside --from: the user's own file with only what changes.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Whether the run of the question stands in a file of a kind that is edited: a launch script of
// Megatron-LM, a configuration of torchtitan, by --from without another framework.
bool has_own_file(const ExportRequest& request);

// The file under its own name, and changes.diff. `options`: those of the command, of which the
// cluster says how many ranks the file's run has.
std::vector<ExportedFile> own_files(const ExportRequest& request, const Options& options);

}  // namespace shardplan
