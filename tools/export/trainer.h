// A plan of transformers' Trainer as launch.sh and a program: the inverse of data/arguments/
// {transformers,deepspeed,trainer}.h.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// launch.sh, accelerate.yaml, train.py and slurm.sbatch; the model's config.json where it has no
// name on the Hub.
std::vector<ExportedFile> accelerate_files(const ExportRequest& request);
// The same with torchrun and deepspeed.json.
std::vector<ExportedFile> deepspeed_files(const ExportRequest& request);

}  // namespace shardplan
