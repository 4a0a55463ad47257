// Rules say which fields of a plan they look at; search believes them.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <random>
#include <vector>
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"

namespace shardplan {
namespace {

struct RandomField {
  PlanField field;
  std::function<void(Plan&, std::mt19937_64&)> choose;
};

template <class Value, class Member>
RandomField one_of(PlanField field, Member Plan::*member, std::vector<Value> values) {
  return {field, [member, values](Plan& plan, std::mt19937_64& random) {
            plan.*member = values[random() % values.size()];
          }};
}

// Sizes whose product divides the number of GPUs, as rules may assume of those before them.
std::vector<RandomField> random_fields() {
  using Sizes = std::vector<std::int64_t>;
  using DTypes = std::vector<DType>;
  const DTypes dtypes = {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp8};
  std::vector<RandomField> fields = {
      one_of<std::int64_t>(PlanField::kTp, &Plan::tp, Sizes{1, 2, 3, 8, 16}),
      one_of<std::int64_t>(PlanField::kCp, &Plan::cp, Sizes{1, 2, 3, 4}),
      one_of<std::int64_t>(PlanField::kEp, &Plan::ep, Sizes{1, 2, 3, 8, 64}),
      one_of<std::int64_t>(PlanField::kEtp, &Plan::etp, Sizes{1, 2, 3, 8}),
      one_of<std::int64_t>(PlanField::kPp, &Plan::pp, Sizes{1, 2, 3, 4, 16}),
      one_of<std::int64_t>(PlanField::kVpp, &Plan::vpp, Sizes{1, 2, 3, 5}),
      one_of<std::int64_t>(PlanField::kDp, &Plan::dp, Sizes{0, 1, 2, 64, 864}),
      one_of<std::int64_t>(PlanField::kDpReplicate, &Plan::dp_replicate, Sizes{1, 2, 3, 5}),
      one_of<std::int64_t>(PlanField::kZero, &Plan::zero, Sizes{0, 1, 2, 3}),
      one_of<std::int64_t>(PlanField::kMicroBatch, &Plan::micro_batch,
                           Sizes{1, 2, 3, 7, std::int64_t{1} << 40}),
      one_of<bool>(PlanField::kSequenceParallel, &Plan::sequence_parallel,
                   std::vector<bool>{false, true}),
      one_of<CpMethod>(
          PlanField::kCpMethod, &Plan::cp_method,
          std::vector<CpMethod>{CpMethod::kRing, CpMethod::kAllGather, CpMethod::kA2a}),
      one_of<DType>(PlanField::kGradDtype, &Plan::grad_dtype, dtypes),
      one_of<DType>(PlanField::kMasterDtype, &Plan::master_dtype, dtypes),
      one_of<DType>(PlanField::kExpAvgDtype, &Plan::exp_avg_dtype, dtypes),
      one_of<DType>(PlanField::kExpAvgSqDtype, &Plan::exp_avg_sq_dtype, dtypes),
      one_of<double>(PlanField::kMoeBufferFactor, &Plan::moe_buffer_factor,
                     std::vector<double>{0.5, 1, 2, 100}),
  };
  fields.push_back({PlanField::kLayersPerChunk, [](Plan& plan, std::mt19937_64& random) {
                      const std::array<std::vector<std::int64_t>, 4> values = {
                          {{}, {3, 5}, {7, 8, 9, 8}, {-1, 33}}};
                      plan.layers_per_chunk = values[random() % values.size()];
                    }});
  fields.push_back({PlanField::kRecompute, [](Plan& plan, std::mt19937_64& random) {
                      Recompute& recompute = plan.recompute;
                      recompute = {};
                      recompute.granularity = static_cast<RecomputeGranularity>(random() % 3);
                      recompute.method = static_cast<RecomputeMethod>(random() % 2);
                      recompute.num_layers = 1 + static_cast<std::int64_t>(random() % 9);
                      for (const auto& module : kRecomputeModules) {
                        recompute.modules.*module.value = random() % 4 == 0;
                      }
                      recompute.policy = random() % 3 == 0 ? "every_second_layer" : "";
                    }});
  fields.push_back({PlanField::kSchedule, [](Plan& plan, std::mt19937_64& random) {
                      plan.schedule = kSchedules[random() % kSchedules.size()].value;
                    }});
  fields.push_back({PlanField::kPrecision, [](Plan& plan, std::mt19937_64& random) {
                      plan.precision = kPrecisions[random() % kPrecisions.size()].value;
                    }});
  fields.push_back({PlanField::kRankOrder, [](Plan& plan, std::mt19937_64& random) {
                      for (Dimension& dimension : plan.rank_order) {
                        dimension = static_cast<Dimension>(random() % 4);
                      }
                    }});
  fields.push_back({PlanField::kOffload, [](Plan& plan, std::mt19937_64& random) {
                      plan.offload = {.optimizer = static_cast<double>(random() % 5) / 2 - 0.5,
                                      .activations = random() % 2 == 0,
                                      .parameters = random() % 2 == 0};
                    }});
  return fields;
}

Job some_job(MemoryModel memory_model, std::mt19937_64& random) {
  Job job;
  job.model.hidden = 4096;
  job.model.ffn = 14336;
  job.model.vocab = 128256;
  job.model.num_heads = 24;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 128;
  job.model.layers.resize(32);
  if (random() % 2 == 0) {
    job.model.moe = {.num_experts = 12, .topk = 2, .expert_ffn = 1440, .shared_ffn = 96};
    job.model.layers.assign(32, {.is_moe = true});
  }
  job.model.layers.front().attention_window = random() % 2 == 0 ? 1024 : 0;
  job.cluster.gpu.compute_capability = random() % 2 == 0 ? 80 : 90;
  job.cluster.gpus_per_node = 8;
  job.cluster.nodes = 864;  // 2^8 * 3^3
  set_framework(job.profile, memory_model);
  job.profile.overlap_param_gather = random() % 2 == 0;
  job.profile.launch_blocking = random() % 2 == 0;
  job.profile.cp_overlap = random() % 2 == 0 ? CpOverlap::kAttention : CpOverlap::kExposed;
  job.sequence_length = random() % 2 == 0 ? 8192 : 6144;
  job.global_batch = 1728;
  return job;
}

}  // namespace

TEST_CASE("a rule looks at no field of a plan that it does not name") {
  const std::vector<RandomField> fields = random_fields();
  CHECK(std::ssize(fields) == kNumPlanFields);
  std::mt19937_64 random(13);
  for (const auto& row : kMemoryModels) {
    std::int64_t changes = 0;
    for (int round = 0; round < 4000; ++round) {
      const Job job = some_job(row.value, random);
      Plan plan;
      for (const RandomField& field : fields) { field.choose(plan, random); }
      const RandomField& field = fields[random() % fields.size()];
      Plan other = plan;
      field.choose(other, random);
      for (const ValidityRule& rule : validity_rules(job.profile)) {
        if (rule.broken(job, plan) != rule.broken(job, other)) {
          INFO(row.name, " ", rule.name, " looks at field ", static_cast<int>(field.field));
          REQUIRE(rule.reads.has(field.field));
          ++changes;
        }
      }
    }
    CHECK(changes > 500);
  }
}

TEST_CASE("every rule names the fields that it reads") {
  for (const auto& row : kMemoryModels) {
    FrameworkProfile profile;
    set_framework(profile, row.value);
    for (const ValidityRule& rule : validity_rules(profile)) {
      INFO(row.name, " ", rule.name);
      CHECK(rule.reads != PlanFields::all());
    }
  }
}

TEST_CASE("a rule that a single field breaks is broken by that field among defaults") {
  const std::vector<std::int64_t Plan::*> sizes = {
      &Plan::tp, &Plan::cp,  &Plan::ep,          &Plan::etp,
      &Plan::pp, &Plan::vpp, &Plan::micro_batch, &Plan::dp_replicate};
  std::mt19937_64 random(5);
  for (const auto& row : kMemoryModels) {
    const Job job = some_job(row.value, random);
    for (const ValidityRule& rule : validity_rules(job.profile)) {
      if (!rule.field_by_field) {
        continue;
      }
      CHECK_FALSE(rule.broken(job, Plan{}));
      for (int round = 0; round < 200; ++round) {
        Plan plan;
        bool alone = false;
        for (std::int64_t Plan::*size : sizes) {
          plan.*size = static_cast<std::int64_t>(random() % 9);
          Plan single;
          single.*size = plan.*size;
          alone = alone || rule.broken(job, single);
        }
        CHECK(rule.broken(job, plan) == alone);
      }
    }
  }
}

}  // namespace shardplan
