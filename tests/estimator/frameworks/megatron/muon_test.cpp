// Muon's state and step counted by hand from Megatron-LM core_v0.16.1 core/optimizer/muon.py,
// layer_wise_optimizer.py and Emerging-Optimizers v0.1.0.
#include "estimator/frameworks/megatron/muon.h"

#include <doctest/doctest.h>

#include "data/read/library.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/pipeline_step.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/answer/step_time.h"
#include "estimator/estimate.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan::megatron {
namespace {

constexpr LlamaShape kShape = {.hidden = 4096, .ffn = 14336, .heads = 32, .layers = 4};
constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kTable = std::int64_t{128256} * kHidden;
constexpr std::int64_t kPacked = (4096 + 2 * 1024) * kHidden;
constexpr std::int64_t kOutput = 4096 * kHidden;
constexpr std::int64_t kFc1 = std::int64_t{2} * 14336 * kHidden;
constexpr std::int64_t kFc2 = 14336 * kHidden;

Job muon_job(OptimizerKind optimizer, std::int64_t gpus) {
  Job job = llama_job("megatron", kShape, gpus, 8192, 8);
  job.optimizer = optimizer;
  return job;
}

std::vector<MuonTensor> tensors_of(const Job& job, const Plan& plan) {
  return muon_tensors(
      job, plan, {.dense_layers = job.model.num_layers(), .tables = 2, .has_final_norm = true});
}

std::int64_t row_bytes(const Job& job, const Plan& plan, std::string_view name) {
  const MemoryEstimate estimate = estimate_memory(job, plan);
  for (const Row& row : estimate.stages.front().rows) {
    if (row.name == name) {
      return row.total_bytes();
    }
  }
  return 0;
}

std::vector<std::int64_t> elements(const std::vector<MuonTensor>& tensors) {
  std::vector<std::int64_t> found;
  for (const MuonTensor& tensor : tensors) {
    found.insert(found.end(), static_cast<std::size_t>(tensor.count), tensor.elements());
  }
  return found;
}

// The example in the source of shard_params: of p0 to p9, sorted by size, ranks 0 to 3 get
// (p0 p7 p8), (p1 p6 p9), (p2 p5) and (p3 p4).
TEST_CASE("parameters are dealt to ranks there and back, and the fullest rank decides") {
  const Job job = muon_job(OptimizerKind::kDistMuon, 4);
  std::vector<MuonTensor> tensors;
  for (std::int64_t size = 1; size <= 10; ++size) {
    tensors.push_back({.rows = size, .columns = 1, .is_matrix = true});
  }
  CHECK(elements(fullest_muon_tensors(job, Plan{}, tensors)) ==
        std::vector<std::int64_t>{2, 7, 10});
}

TEST_CASE("muon keeps one moment of matrices and both of tables and norms on every rank") {
  const Job job = muon_job(OptimizerKind::kMuon, 2);
  const Plan plan;
  const std::int64_t matrices = 4 * (kPacked + kOutput + kFc1 + kFc2);
  const std::int64_t others = 2 * kTable + 9 * kHidden;
  CHECK(row_bytes(job, plan, "optimizer.dense.master") == 4 * (matrices + others));
  CHECK(row_bytes(job, plan, "optimizer.dense.exp_avg") == 4 * (matrices + others));
  CHECK(row_bytes(job, plan, "optimizer.dense.exp_avg_sq") == 4 * others);
}

// Sorted: nine norms, four output projections, four packed ones, four fc2, four fc1, two tables.
// Rank 1 gets numbers 1, 2, 5, 6, .. of 0 to 26, so that both tables, 25 and 26, are its.
TEST_CASE("dist_muon on two ranks: one of them is dealt both tables") {
  const Job job = muon_job(OptimizerKind::kDistMuon, 2);
  const Plan plan;
  const MuonShare share = fullest_muon_share(job, plan, tensors_of(job, plan));
  const std::int64_t matrices = 2 * (kOutput + kPacked + kFc2 + kFc1);
  CHECK(share.dense == matrices + 2 * kTable + 4 * kHidden);
  CHECK(share.dense_second_moment == 2 * kTable + 4 * kHidden);
  CHECK(row_bytes(job, plan, "optimizer.dense.master") == 4 * share.dense);
}

// A module of prediction has experts as its layer does; shared experts of the same width are none.
TEST_CASE("experts have ranks of their own, in modules of prediction as well") {
  Job job = muon_job(OptimizerKind::kDistMuon, 8);
  job.model.layers.assign(2, {.is_moe = true});
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024, .shared_ffn = 1024};
  job.model.num_mtp_layers = 1;
  const Plan plan{.ep = 8};
  const std::vector<MuonTensor> tensors =
      muon_tensors(job, plan, {.moe_layers = 2, .mtp_modules = 1, .tables = 2});
  std::int64_t experts = 0;
  std::int64_t all = 0;
  for (const MuonTensor& tensor : tensors) {
    experts += tensor.is_expert ? tensor.count * tensor.elements() : 0;
    all += tensor.count * tensor.elements();
  }
  CHECK(experts == 3 * 3 * 1024 * kHidden);
  const LocalParameters held = local_parameters(job, plan, 0);
  CHECK(all + kHidden == held.total());  // and the final norm
}

TEST_CASE("what the time model updates is what the memory model holds, copies of tables as well") {
  Job job = muon_job(OptimizerKind::kDistMuon, 8);
  for (const bool tied : {false, true}) {
    for (const std::int64_t modules : {0, 1}) {
      job.model.tied_embeddings = tied;
      job.model.num_mtp_layers = modules;
      const Plan plan{.pp = 2, .schedule = Schedule::k1F1B};
      const StepLayout layout = step_layout(job, plan, layer_kinds(job.model));
      const std::vector<RankParameters> ranks =
          rank_parameters(job, layout, model_times(job, plan));
      for (const StagePieces& stage : plan_pieces(job, plan).stages) {
        const HeldBlocks held = held_blocks(job, stage.layout);
        CHECK(ranks[layout.pipeline.rank_kind(stage.layout.pp_rank)].blocks == held);
      }
    }
  }
}

TEST_CASE("behind the step all parameters are there again, and the rank's own") {
  const Job job = muon_job(OptimizerKind::kDistMuon, 2);
  const Plan plan;
  const MuonShare share = fullest_muon_share(job, plan, tensors_of(job, plan));
  const std::int64_t all = 4 * (kPacked + kOutput + kFc1 + kFc2) + 2 * kTable + 9 * kHidden;
  CHECK(share.gather.total() == all + share.dense);
}

TEST_CASE("equal shares are gathered in one piece, which is copied apart") {
  const Job job = muon_job(OptimizerKind::kDistMuon, 2);
  const std::vector<MuonTensor> tensors = {
      {.rows = 8, .columns = 4, .count = 2, .is_matrix = true}};
  CHECK(fullest_muon_share(job, Plan{}, tensors).gather.total() == 64 + 32 + 64);
}

// Three fp32 tensors of fc1 once it is orthogonal; with Nesterov's momentum its gradient as well.
TEST_CASE("an update holds three copies of the largest matrix") {
  Job job = muon_job(OptimizerKind::kMuon, 1);
  const Plan plan;
  CHECK(fullest_muon_share(job, plan, tensors_of(job, plan)).temporary.total() == 3 * kFc1);
  job.profile.muon_nesterov = true;
  CHECK(fullest_muon_share(job, plan, tensors_of(job, plan)).temporary.total() == 4 * kFc1);
}

TEST_CASE("packed queries, keys and values are copied apart, and the queries updated first") {
  const Job job = muon_job(OptimizerKind::kMuon, 1);
  const std::vector<MuonTensor> packed = {
      {.rows = 6144, .columns = 4096, .key_rows = 1024, .is_matrix = true}};
  CHECK(fullest_muon_share(job, Plan{}, packed).temporary.total() == kPacked + 3 * kOutput);
}

TEST_CASE("with one data-parallel rank dist_muon is muon") {
  const Job whole = muon_job(OptimizerKind::kMuon, 2);
  const Job divided = muon_job(OptimizerKind::kDistMuon, 2);
  Plan plan;
  plan.tp = 2;
  plan.sequence_parallel = true;
  const auto peak = [&](const Job& job) {
    return estimate_memory(job, plan).stages.front().allocated_bytes;
  };
  CHECK(peak(whole) == peak(divided));
  CHECK(estimate_step_time(whole, plan).total_s == estimate_step_time(divided, plan).total_s);
}

TEST_CASE("the fullest rank has at least its share of the state, and at most all of it") {
  RandomJobs jobs(Library{}, 20261126);
  for (int i = 0; i < 200; ++i) {
    const RandomCase at = jobs.next(Library{}.framework("megatron"));
    if (!divides_muon(at.job, at.plan)) {
      continue;
    }
    const std::int64_t ranks = dense_shard_size(at.job, at.plan);
    const std::vector<MuonTensor> tensors = muon_tensors(
        at.job, at.plan, {.dense_layers = 3, .moe_layers = 0, .tables = 1, .has_final_norm = true});
    std::int64_t all = 0;  // main parameters and moments
    for (const MuonTensor& tensor : tensors) {
      all += tensor.count * tensor.elements() * (tensor.is_matrix ? 2 : 3);
    }
    const MuonShare share = fullest_muon_share(at.job, at.plan, tensors);
    const std::int64_t fullest = 2 * share.dense + share.dense_second_moment;
    CHECK(fullest * ranks >= all);
    CHECK(fullest <= all);
  }
}

TEST_CASE("Newton-Schulz is the most of the update, and ranks divide it") {
  const Job whole = muon_job(OptimizerKind::kMuon, 8);
  const Job divided = muon_job(OptimizerKind::kDistMuon, 8);
  const Plan plan;
  const StepTime alone = estimate_step_time(whole, plan);
  const StepTime shared = estimate_step_time(divided, plan);
  // 5 (4 m m k + 2 m m m) of the four matrices of a layer, at the datasheet's rate.
  const auto flops = [](double m, double k) { return 5 * (4 * m * m * k + 2 * m * m * m); };
  const double least_s = 4 *
                         (flops(4096, 4096) + 2 * flops(1024, 4096) + flops(4096, 4096) +
                          flops(4096, 28672) + flops(4096, 14336)) /
                         whole.cluster.gpu.bf16_flops_per_s;
  CHECK(alone.optimizer_s > least_s);
  CHECK(alone.optimizer_s < 2.5 * least_s);
  CHECK(shared.optimizer_s < alone.optimizer_s / 3);
  CHECK(shared.exposed_dp_s > alone.exposed_dp_s);
}

TEST_CASE("muon refuses what Megatron-LM refuses beside it") {
  const auto broken = [](const Job& job, const Plan& plan) {
    const ValidityRule* const rule = first_broken_rule(job, plan);
    return rule == nullptr ? std::string_view{} : rule->name;
  };
  Job job = muon_job(OptimizerKind::kDistMuon, 8);
  Plan plan;
  CHECK(broken(job, plan).empty());
  plan.zero = 1;
  CHECK(broken(job, plan) == "muon_needs_zero_0_and_no_overlaps");
  plan.zero = 0;
  job.profile.overlap_grad_reduce = true;
  CHECK(broken(job, plan) == "muon_needs_zero_0_and_no_overlaps");
  Job elsewhere = llama_job("nanotron", kShape, 8, 8192, 8);
  elsewhere.optimizer = OptimizerKind::kDistMuon;
  CHECK(broken(elsewhere, plan) == "unsupported: optimizer");
}

}  // namespace
}  // namespace shardplan::megatron
