// Settings of transformers' Trainer, in the words of train.py's command line.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// transformers' word for the optimizer: "adamw_torch_fused".
const char* trainer_optimizer(const Job& job);

// Of the model and its adapters, what a step keeps, and the training itself.
std::vector<ArgumentGroup> trainer_arguments(const ExportRequest& request);

}  // namespace shardplan
