#include "estimator/frameworks/deepspeed/notes.h"

#include "estimator/frameworks/pieces/huggingface/mixers/notes.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface/shared.h"

namespace shardplan::deepspeed {

void add_assumptions(const Job& job, const Plan& plan, const PlanPieces&,
                     std::vector<Assumption>& assumptions) {
  const auto add = [&](const char* text) { assumptions.push_back({.text = text}); };
  add("every batch has an attention mask, as transformers' data collators make it: without one and "
      "without a key-value cache, transformers masks itself and repeats keys and values for every "
      "head");
  add(huggingface::attention_assumption(job));
  if (job.profile.objective != Objective::kNextToken) {
    assumptions.push_back({.text = huggingface::objective_assumption(job)});
  }
  if (job.profile.vision_tower != TowerUse::kAbsent) {
    add(huggingface::kTowerAssumption);
  }
  if (!job.name_rules.empty()) {
    add(huggingface::kNamesAssumption);
  }
  if (huggingface::has_recurrences(job.model)) {
    assumptions.push_back({.text = huggingface::recurrence_assumption(job)});
  }
  if (job.optimizer != OptimizerKind::kAdamW) {
    add(plan.offload.optimizer > 0
            ? "an optimizer of bitsandbytes is DeepSpeed's AdamW in fp32 where it is offloaded"
        : is_paged(job.optimizer)
            ? "paged moments stay on the GPU, and their step takes as long as one of fp32's"
            : "the step of 8-bit moments takes as long as one of fp32's");
  }
  if (plan.offload.optimizer > 0 && job.profile.host_threads == 1) {
    add("the optimizer on the host has one thread a rank, which torchrun and accelerate set where "
        "OMP_NUM_THREADS is not set; --set host_threads=N counts N, up to the rank's share of the "
        "host's memory rate");
  }
}

std::vector<std::string> not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "other processes on the GPU"};
}

}  // namespace shardplan::deepspeed
