// Bash scripts that start a training: arguments in arrays by group, environment, and the words of
// the launcher.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// "MODEL_ARGS=(\n  --num-layers 32\n)\n"
std::string array_text(const ArgumentGroup& group);
// The words of all arrays, each on a line that the one before goes on to.
std::string array_words(const std::vector<ArgumentGroup>& groups);

// "export NAME=value  # comment" for each.
std::string environment_text(const std::vector<ExportedVariable>& variables);

// The comment on top: what is launched, which question it answers and what is predicted. Of a file
// whose comments begin with '#'.
std::string opening_comment(const ExportRequest& request, const std::string& what);

// Shebang and the settings under which a script stops at its first mistake, in its own folder.
std::string script_opening(const ExportRequest& request, const std::string& what);

// Variables of the run's geometry: how many nodes and GPUs, and a node's place among them.
std::string geometry_text(const ClusterSpec& cluster);
// A node's rank and the address of the first, which each node may set.
std::string place_text();

// torchrun with the words of the geometry, to go on behind.
std::string torchrun_text();

// Starts launch.sh once on every node.
ExportedFile slurm_file(const ExportRequest& request);

}  // namespace shardplan
