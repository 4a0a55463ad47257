#include "estimator/frameworks/fujii2024/formula.h"
#include "estimator/frameworks/framework.h"

#include <doctest/doctest.h>

#include <cmath>

#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/llama_job.h"

using namespace shardplan;
using namespace shardplan::fujii2024;

namespace {

Job job_of(const LlamaShape& shape) {
  Job job;
  job.model = llama_model(shape);
  set_framework(job.profile, MemoryModel::kFujii2024);
  job.sequence_length = 8192;
  job.cluster.gpu.nominal_memory_bytes = 80'000'000'000;
  return job;
}

Job llama3_8b() {
  return job_of({.hidden = 4096, .ffn = 14336, .heads = 32, .layers = 32});
}
Job llama3_70b() {
  return job_of({.hidden = 8192, .ffn = 28672, .heads = 64, .layers = 80});
}

// One sequence a microbatch, distributed optimizer, gradients in fp32.
MemoryEstimate estimate_of(Job job, Plan plan) {
  job.cluster.nodes = plan.tp * plan.cp * plan.pp * plan.dp;
  job.cluster.gpus_per_node = 1;
  job.global_batch = 64 * plan.dp;
  plan.zero = 1;
  plan.sequence_parallel = plan.tp > 1;
  plan.schedule = plan.pp == 1    ? Schedule::kNone
                  : plan.vpp == 1 ? Schedule::k1F1B
                                  : Schedule::kInterleaved1F1B;
  return estimate_by_formula(job, plan);
}

std::int64_t bytes_of_plan(const Job& job, const Plan& plan) {
  return estimate_of(job, plan).stages.front().allocated_bytes;
}

double gib(std::int64_t bytes) {
  return std::round(static_cast<double>(bytes) / static_cast<double>(kGiB) * 100) / 100;
}

Plan plan_of(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t dp,
             std::int64_t vpp = 1) {
  Plan plan;
  plan.tp = tp;
  plan.pp = pp;
  plan.cp = cp;
  plan.dp = dp;
  plan.vpp = vpp;
  return plan;
}

}  // namespace

TEST_CASE("the nine cases of the author's calculator are reproduced") {
  // okoge-kaz.github.io memory-estimator.js, sequence 8192, micro batch 1, fp32 gradients.
  const Job small = llama3_8b();
  const Job large = llama3_70b();
  CHECK(bytes_of_plan(small, plan_of(8, 4, 1, 16)) == 9'362'103'040);
  CHECK(gib(bytes_of_plan(small, plan_of(2, 2, 1, 2))) == 47.27);
  CHECK(gib(bytes_of_plan(small, plan_of(1, 1, 1, 8))) == 97.56);
  CHECK(gib(bytes_of_plan(small, plan_of(4, 1, 1, 2))) == 33.62);
  CHECK(gib(bytes_of_plan(small, plan_of(1, 1, 2, 4))) == 88.74);
  CHECK(bytes_of_plan(large, plan_of(8, 4, 1, 16)) == 44'893'259'520);
  CHECK(bytes_of_plan(large, plan_of(4, 8, 1, 16)) == 73'844'254'464);
  CHECK(bytes_of_plan(large, plan_of(8, 4, 1, 16, 5)) == 23'149'987'584);
  CHECK(gib(bytes_of_plan(large, plan_of(8, 4, 2, 8))) == 31.30);
}

TEST_CASE("one row of each component is counted by hand for Llama-3-8B on one GPU") {
  const MemoryEstimate estimate = estimate_of(llama3_8b(), plan_of(1, 1, 1, 1));
  const StageMemory& stage = estimate.stages.front();
  const auto bytes = [&](Component component) {
    return stage.components[static_cast<std::size_t>(component)];
  };
  CHECK(stage.parameters == 8'030'261'248);
  CHECK(bytes(Component::kParameters) == 2 * 8'030'261'248);
  CHECK(bytes(Component::kGradients) == 4 * 8'030'261'248);
  CHECK(bytes(Component::kOptimizer) == 12 * 8'030'261'248);
  // 8192 tokens x 32 layers x (13 x 4096 + 8 x 14336) bytes.
  CHECK(bytes(Component::kActivations) == std::int64_t{8192} * 32 * (13 * 4096 + 8 * 14336));
  CHECK(bytes(Component::kCommunication) == 0);
}

TEST_CASE("rows add up to the components and to the one total") {
  for (const Plan& plan : {plan_of(1, 1, 1, 1), plan_of(2, 2, 2, 2), plan_of(8, 4, 1, 16, 2)}) {
    const StageMemory stage = estimate_of(llama3_8b(), plan).stages.front();
    std::array<std::int64_t, 8> components{};
    std::int64_t total = 0;
    for (const Row& row : stage.rows) {
      components[static_cast<std::size_t>(row.component)] += row.total_bytes();
      total += row.total_bytes();
    }
    CHECK(components == stage.components);
    CHECK(total == stage.allocated_bytes);
    CHECK(total == stage.device_used_bytes);
    CHECK(stage.peak_moment() == "whole step");
  }
}

TEST_CASE("at most 80 percent of the decimal capacity fits, up to all of it is tight") {
  Job job = llama3_8b();
  const Plan plan = plan_of(2, 2, 1, 2);
  const std::int64_t total = bytes_of_plan(job, plan);
  job.cluster.gpu.nominal_memory_bytes = total;
  CHECK(estimate_of(job, plan).fit == Fit::kTight);
  job.cluster.gpu.nominal_memory_bytes = total - 1;
  CHECK(estimate_of(job, plan).fit == Fit::kDoesNotFit);
  job.cluster.gpu.nominal_memory_bytes = (total + 3) / 4 * 5;
  CHECK(estimate_of(job, plan).fit == Fit::kFits);
  job.cluster.gpu.nominal_memory_bytes = total / 4 * 5 - 5;
  CHECK(estimate_of(job, plan).fit == Fit::kTight);
  job.cluster.memory_limit_bytes = total - 1;
  CHECK(estimate_of(job, plan).fit == Fit::kDoesNotFit);
}

TEST_CASE("experts are divided by tp times ep, and their activations by the experts used") {
  // Mixtral-8x7B: hidden 4096, 8 experts of 14336, 2 used, 32 layers, vocabulary 32000.
  Job job = llama3_8b();
  job.model.vocab = 32000;
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 14336};
  job.model.layers.assign(32, {.is_moe = true});
  Plan plan = plan_of(2, 1, 1, 4);
  plan.ep = 4;
  const StageMemory stage = estimate_of(job, plan).stages.front();
  const std::int64_t attention = std::int64_t{32} * 2 * 4096 * 40 * 128 / 2;
  const std::int64_t ffn =
      std::int64_t{32} * (std::int64_t{8} * 3 * 4096 * 14336 + std::int64_t{4096} * 8) / 8;
  const std::int64_t norms = 32 * 2 * 4096 + 4096;
  const std::int64_t tables = 2 * std::int64_t{4096} * 32000 / 2;
  CHECK(stage.parameters == attention + ffn + norms + tables);
  CHECK(stage.components[static_cast<std::size_t>(Component::kActivations)] ==
        std::int64_t{8192} * 32 * (11 * 4096 + 2 * (4096 + 4 * 14336 * 2)) / 2);
  // TP, DP and EP have more than one rank.
  CHECK(stage.components[static_cast<std::size_t>(Component::kCommunication)] == 1'500'000'000);
}

TEST_CASE("the standalone embedding option counts embedding and head as layers") {
  Job job = job_of({.hidden = 16384, .ffn = 53248, .heads = 128, .layers = 126});
  job.profile.account_for_embedding_in_split = true;
  job.profile.account_for_loss_in_split = true;
  CHECK(estimate_of(job, plan_of(8, 8, 1, 1)).stages.front().num_layers == 16);
  job.profile.account_for_embedding_in_split = false;
  CHECK(estimate_of(job, plan_of(8, 9, 1, 1)).stages.front().num_layers == 14);
}
