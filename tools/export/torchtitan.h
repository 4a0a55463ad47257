// A plan as a configuration of torchtitan v0.2.2: the inverse of data/arguments/torchtitan.h.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Its configuration, section by section.
std::vector<ArgumentGroup> torchtitan_sections(const ExportRequest& request);

// launch.sh, train.toml and slurm.sbatch. InputError for a model or a partition of layers that
// torchtitan does not have.
std::vector<ExportedFile> torchtitan_files(const ExportRequest& request);

}  // namespace shardplan
