#include "tests/estimator/broken_plans.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"

#include <doctest/doctest.h>

namespace shardplan {

Job dense_job(MemoryModel memory_model) {
  Job job;
  job.model.hidden = 4096;
  job.model.ffn = 14336;
  job.model.vocab = 128256;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 128;
  job.model.layers.resize(32);
  job.cluster.gpu.id = "H200-SXM-141GB";
  job.cluster.gpu.compute_capability = 90;
  job.profile.name = "profile";
  job.profile.version = "v1";
  set_framework(job.profile, memory_model);
  job.sequence_length = 8192;
  job.global_batch = 64;
  return job;
}

Job moe_job(MemoryModel memory_model) {
  Job job = dense_job(memory_model);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 14336};
  job.model.layers.assign(32, {.is_moe = true});
  return job;
}

Job mla_job(MemoryModel memory_model) {
  Job job = dense_job(memory_model);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 1536,
                   .kv_lora_rank = 512,
                   .qk_nope_head_dim = 128,
                   .qk_rope_head_dim = 64,
                   .v_head_dim = 128};
  return job;
}

void check_refused(const Job& valid, const std::vector<Broken>& cases, const Plan& from) {
  REQUIRE_FALSE(why_invalid(valid, from).has_value());
  for (const Broken& broken : cases) {
    CAPTURE(broken.rule);
    Job job = valid;
    Plan plan = from;
    broken.spoil(job, plan);
    const std::optional<InvalidReason> reason = why_invalid(job, plan);
    REQUIRE(reason.has_value());
    CHECK(reason->rule == broken.rule);
    for (const std::string& word : broken.words) {
      CAPTURE(reason->message);
      CAPTURE(word);
      CHECK(reason->message.find(word) != std::string::npos);
    }
  }
}

void sets_pp2(Job&, Plan& plan) {
  plan.pp = 2;
  plan.schedule = Schedule::k1F1B;
}

}  // namespace shardplan
