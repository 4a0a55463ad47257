#include "tests/estimator/frameworks/transformers/small_job.h"

#include "tests/estimator/llama_job.h"

namespace shardplan {

Job small_trainer_job(std::int64_t gpus) {
  Job job = llama_job("transformers", {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, gpus,
                      512, gpus);
  job.model.num_kv_heads = 4;
  job.model.vocab = 1024;
  return job;
}

Adapters adapters_on_all(std::int64_t rank) {
  Adapters adapters;
  adapters.rank = rank;
  adapters.targets.fill(true);
  return adapters;
}

Plan trainer_plan(std::int64_t zero) {
  Plan plan;
  plan.zero = zero;
  plan.grad_dtype = DType::kBf16;
  return plan;
}

}  // namespace shardplan
