// Parallelism, what a step keeps and how it runs, in Megatron-LM's arguments.
#pragma once

#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

std::vector<ExportedArgument> megatron_parallel_arguments(const ExportRequest& request);
std::vector<ExportedArgument> megatron_memory_arguments(const ExportRequest& request);
std::vector<ExportedArgument> megatron_kernel_arguments(const ExportRequest& request);

// --use-megatron-fsdp, which shards gradients and parameters.
bool uses_megatron_fsdp(const Plan& plan);

}  // namespace shardplan
