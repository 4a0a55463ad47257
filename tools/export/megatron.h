// A plan as a launch script of Megatron-LM core_v0.16.1: the inverse of data/arguments/megatron.h.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Its arguments, by what they are about.
std::vector<ArgumentGroup> megatron_groups(const ExportRequest& request);

// launch.sh and slurm.sbatch. InputError for what Megatron-LM refuses to start with.
std::vector<ExportedFile> megatron_files(const ExportRequest& request);

}  // namespace shardplan
