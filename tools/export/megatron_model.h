// The architecture in Megatron-LM's arguments.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

std::vector<ExportedArgument> megatron_model_arguments(const ExportRequest& request);
std::vector<ExportedArgument> megatron_expert_arguments(const ExportRequest& request);

}  // namespace shardplan
