// The architecture in Megatron-LM's arguments.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Megatron-LM's program for the model: pretrain_gpt.py, or that of hybrids of Mamba-2.
std::string megatron_program(const ModelSpec& model);
std::vector<ExportedArgument> megatron_model_arguments(const ExportRequest& request);
std::vector<ExportedArgument> megatron_expert_arguments(const ExportRequest& request);

}  // namespace shardplan
