// Jobs of Llama-like models that traces and hand counts of several frameworks are about.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "estimator/plan/job.h"

namespace shardplan {

struct LlamaShape {
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 0;
  std::int64_t layers = 0;
};

// 8 key-value heads, a vocabulary of 128,256, tables apart.
ModelSpec llama_model(const LlamaShape& shape);

// On so many GPUs of one H200 node.
Job llama_job(std::string_view framework, const LlamaShape& shape, std::int64_t gpus,
              std::int64_t sequence, std::int64_t batch);

// Llama-3-8B under DeepSpeed, so many microbatches of one sequence of 1024 tokens a rank.
Job deepspeed_job(std::int64_t microbatches, const std::string& framework = "deepspeed",
                  const std::string& cluster = "1x8-h100");

// Gradients in bf16, as DeepSpeed's are.
Plan deepspeed_plan(std::int64_t zero);

// A Hopper GPU by its data sheet: H100 and H200 differ in what their memory moves.
GpuSpec hopper_gpu(double memory_bytes_per_s);

// Llama-3-8B with sequences of 8192 tokens on one H200 by its data sheet, trained by
// Megatron-LM.
Job job_on_h200();

}  // namespace shardplan
