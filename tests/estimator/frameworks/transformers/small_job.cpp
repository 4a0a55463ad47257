#include "tests/estimator/frameworks/transformers/small_job.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "estimator/frameworks/transformers/trainer.h"
#include "tests/estimator/llama_job.h"

namespace shardplan {

Job small_trainer_job(std::int64_t gpus) {
  Job job = llama_job("transformers", {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, gpus,
                      512, gpus);
  job.model.num_kv_heads = 4;
  job.model.vocab = 1024;
  return job;
}

Job small_delta_job(const char* family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.model.qk_norm = true;
  job.model.attention_gate = AttentionGate::kPerElement;
  job.model.rotary_share = 0.25;
  job.model.delta = kSmallDelta;
  job.model.layers[0].mixer = MixerKind::kGatedDelta;
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

std::int64_t trainer_bytes_at(const Job& job, MomentKind moment, std::string_view row) {
  return trainer_bytes_at(job, trainer_plan(0), moment, row);
}

std::int64_t trainer_bytes_at(const Job& job, const Plan& plan, MomentKind moment,
                              std::string_view row) {
  const PlayedRun run = transformers::trainer_run(job, plan, 1);
  std::int64_t end = 0;
  for (auto found = run.moments.rbegin(); found != run.moments.rend(); ++found) {
    end = found->moment == moment ? found->event : end;
  }
  REQUIRE(end > 0);
  std::vector<std::int64_t> bytes_of_id(run.events.size() + 1);
  std::size_t label = 0;
  std::int64_t alive = 0;
  for (std::int64_t i = 0; i < end; ++i) {
    const AllocationEvent& event = run.events[static_cast<std::size_t>(i)];
    std::int64_t& bytes = bytes_of_id[static_cast<std::size_t>(event.id)];
    if (event.bytes == 0) {
      alive -= bytes;
      continue;
    }
    while (label + 1 < run.labels.size() && run.labels[label + 1].after_id < event.id) { ++label; }
    bytes = run.labels[label].label->name == row ? event.bytes : 0;
    alive += bytes;
  }
  return alive;
}

std::int64_t saved_bytes(const Job& job, std::string_view row) {
  return trainer_bytes_at(job, MomentKind::kLossForward, row);
}

}  // namespace shardplan
