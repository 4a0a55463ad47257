// Valid jobs on 8 GPUs, and ways to break them that validity must refuse with the right words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

// Llama-3-8B, one step of 64 sequences; with eight experts; with latent attention.
Job dense_job(MemoryModel memory_model);
Job moe_job(MemoryModel memory_model);
Job mla_job(MemoryModel memory_model);

// A broken rule, how to break it, and words that its message must have: both numbers and the
// values that would be valid.
struct Broken {
  std::string_view rule;
  std::function<void(Job&, Plan&)> spoil;
  std::vector<std::string> words;
};
// Each spoils a plan that is valid for the job.
void check_refused(const Job& valid, const std::vector<Broken>& cases, const Plan& from = {});

void sets_pp2(Job& job, Plan& plan);

}  // namespace shardplan
