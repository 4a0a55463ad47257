#include "tests/estimator/llama_job.h"

#include "data/read/library.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/measured_host.h"
#include "tests/time_constants.h"

namespace shardplan {

ModelSpec llama_model(const LlamaShape& shape) {
  ModelSpec model;
  model.hidden = shape.hidden;
  model.ffn = shape.ffn;
  model.vocab = 128256;
  model.num_heads = shape.heads;
  model.num_kv_heads = 8;
  model.head_dim = shape.hidden / shape.heads;
  model.layers.resize(static_cast<std::size_t>(shape.layers));
  return model;
}

Job llama_job(std::string_view framework, const LlamaShape& shape, std::int64_t gpus,
              std::int64_t sequence, std::int64_t batch) {
  const Library library;
  Job job;
  job.profile = library.framework(std::string(framework));
  job.cluster = library.cluster("1x8-h200");
  job.cluster.gpus_per_node = gpus;
  job.model = llama_model(shape);
  job.sequence_length = sequence;
  job.global_batch = batch;
  return job;
}

Job deepspeed_job(std::int64_t microbatches, const std::string& framework,
                  const std::string& cluster) {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster(cluster);
  job.profile = library.framework(framework);
  job.sequence_length = 1024;
  job.global_batch = job.cluster.world_size() * microbatches;
  return job;
}

Plan deepspeed_plan(std::int64_t zero) {
  Plan plan;
  plan.zero = zero;
  plan.grad_dtype = DType::kBf16;
  return plan;
}

GpuSpec hopper_gpu(double memory_bytes_per_s) {
  GpuSpec gpu;
  gpu.constants = library_constants();
  gpu.compute_capability = 90;
  gpu.num_sms = 132;
  gpu.fp32_flops_per_s = 66.9e12;
  gpu.bf16_flops_per_s = 989.4e12;
  gpu.fp8_flops_per_s = 1978.9e12;
  gpu.memory_bytes_per_s = memory_bytes_per_s;
  gpu.nvlink_bytes_per_s = 450e9;
  gpu.pcie_bytes_per_s = 64e9;
  return gpu;
}

Job job_on_h200() {
  Job job;
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  job.cluster.gpu = hopper_gpu(4.8e12);
  job.cluster.inter_node_bytes_per_s = 50e9;
  job.cluster.intra_node_latency_s = 3.4e-6;
  job.cluster.inter_node_latency_s = 14e-6;
  job.sequence_length = 8192;
  job.global_batch = 64;
  job.model = llama_model({.hidden = 4096, .ffn = 14336, .heads = 32, .layers = 32});
  return job;
}

}  // namespace shardplan
