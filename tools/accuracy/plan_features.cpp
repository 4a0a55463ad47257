#include "tools/accuracy/plan_features.h"

#include <array>
#include <string_view>

#include "tools/options/plan_words.h"

namespace shardplan {
namespace {

// Sizes that are a feature when above one.
struct SizeFeature {
  std::string_view name;
  std::int64_t Plan::*field;
};
constexpr std::array<SizeFeature, 8> kSizeFeatures = {{
    {.name = "tp > 1", .field = &Plan::tp},
    {.name = "pp > 1", .field = &Plan::pp},
    {.name = "vpp > 1", .field = &Plan::vpp},
    {.name = "cp > 1", .field = &Plan::cp},
    {.name = "ep > 1", .field = &Plan::ep},
    {.name = "etp > 1", .field = &Plan::etp},
    {.name = "hybrid sharding", .field = &Plan::dp_replicate},
    {.name = "micro_batch > 1", .field = &Plan::micro_batch},
}};

// Without counts of layers: "recompute full/block".
std::string recompute_feature(const Recompute& recompute) {
  if (recompute.granularity != RecomputeGranularity::kFull) {
    return "recompute " + recompute_text(recompute);
  }
  return "recompute full/" + std::string(name_of(recompute.method));
}

}  // namespace

std::vector<std::string> plan_features(const Job& job, const Plan& plan,
                                       const std::vector<CaseOption>& options) {
  std::vector<std::string> features;
  for (const SizeFeature& size : kSizeFeatures) {
    if (plan.*size.field > 1) {
      features.emplace_back(size.name);
    }
  }
  const std::int64_t model_parallel = plan.tp * plan.cp * plan.pp;
  if (job.cluster.world_size() / model_parallel > 1) {
    features.emplace_back("dp > 1");
  }
  if (job.cluster.world_size() == 1) {
    features.emplace_back("one GPU");
  }
  if (job.cluster.nodes > 1) {
    features.emplace_back("several nodes");
  }
  features.emplace_back(job.model.moe.num_experts > 0 ? "moe" : "dense");
  if (job.model.tied_embeddings) {
    features.emplace_back("tied embeddings");
  }
  if (plan.sequence_parallel && plan.tp > 1) {
    features.emplace_back("sequence_parallel");
  }
  if (plan.pp > 1) {
    features.push_back("schedule " + std::string(name_of(plan.schedule)));
  }
  if (job.optimizer != OptimizerKind::kAdamW) {
    features.push_back("optimizer " + std::string(name_of(job.optimizer)));
  }
  if (trained_parameters(job) != TrainedParameters::kAll) {
    features.push_back("trained " + std::string(name_of(trained_parameters(job))));
  }
  features.push_back("zero " + std::to_string(plan.zero));
  features.push_back(recompute_feature(plan.recompute));
  features.push_back("precision " + std::string(name_of(plan.precision)));
  for (const CaseOption& option : options) { features.push_back(option.name + "=" + option.value); }
  return features;
}

}  // namespace shardplan
