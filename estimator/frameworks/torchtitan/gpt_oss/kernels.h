// Kernels of GPT-OSS's layers in torchtitan around products and attention. Every number counts how
// often one element is read or written; e is its size.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/elementwise.h"

namespace shardplan::torchtitan {

// Per element of queries and keys.
Passes halves_rotation_kernels(double e);
// Per element of queries: the output's weighing by sinks.
Passes sink_kernels(const ModelSpec& model, double e);
// Per element of an expert's inner width: its first bias and the bounded gate.
Passes bounded_gate_kernels(const GpuSpec& gpu, double e);
// Per byte of experts' rows in bf16: the second bias.
Passes second_bias_kernels(const GpuSpec& gpu);

}  // namespace shardplan::torchtitan
