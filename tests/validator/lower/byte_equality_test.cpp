// The contract of the native profile: programs and estimates agree to the byte.
#include "tests/validator/lower/byte_equality.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/validator/layouts.h"
#include "tests/validator/lower/random_plans.h"
#include "validator/lower/lower.h"

namespace shardplan {
namespace {

using FeatureCounts = std::map<std::string, std::int64_t>;

void count_recompute(FeatureCounts& counts, const Recompute& recompute) {
  for (const auto& granularity : kRecomputeGranularities) {
    const bool is_used = recompute.granularity == granularity.value;
    counts["recompute " + std::string(granularity.name)] += is_used ? 1 : 0;
  }
  const bool is_full = recompute.granularity == RecomputeGranularity::kFull;
  for (const auto& method : kRecomputeMethods) {
    const bool is_used = is_full && recompute.method == method.value;
    counts["recompute by " + std::string(method.name)] += is_used ? 1 : 0;
  }
  for (const auto& module : kRecomputeModules) {
    if (module.value == &RecomputeModules::mla_up_proj) {
      continue;  // there is no program with multi-head latent attention
    }
    const bool is_used = recompute.granularity == RecomputeGranularity::kSelective &&
                         recompute.modules.*module.value;
    counts["recompute of " + std::string(module.name)] += is_used ? 1 : 0;
  }
}

// Plans that use a feature, or several together.
void count_features(FeatureCounts& counts, const RandomPlan& drawn) {
  const Plan& plan = drawn.plan;
  const auto count = [&](const std::string& feature, bool is_used) {
    counts[feature] += is_used ? 1 : 0;
  };
  const MoeSpec& moe = drawn.job.model.moe;
  const bool has_experts = moe.num_experts > 0;
  const bool splits = plan.schedule == Schedule::kZbH1;
  const bool rings = plan.cp > 1 && plan.cp_method == CpMethod::kRing;
  const bool recomputes = plan.recompute.granularity != RecomputeGranularity::kNone;
  count("experts", has_experts);
  count("shared experts", moe.shared_ffn > 0);
  count("ep", plan.ep > 1);
  count("etp", plan.etp > 1);
  count("ring", rings);
  const bool gathers = plan.cp > 1 && plan.cp_method == CpMethod::kAllGather;
  const auto has_window = [](const LayerSpec& layer) { return layer.attention_window > 0; };
  const std::vector<LayerSpec>& layers = drawn.job.model.layers;
  const bool has_windows = std::ranges::all_of(layers, has_window);
  const bool has_some_windows = !has_windows && std::ranges::any_of(layers, has_window);
  count("all_gather", gathers);
  count("all_gather, windows", gathers && has_windows);
  count("all_gather, some windows", gathers && has_some_windows);
  count("fp8", plan.precision == Precision::kFp8);
  count("fp8, tp", plan.precision == Precision::kFp8 && plan.tp > 1);
  count("sp", plan.sequence_parallel);
  count("tp without sp", plan.tp > 1 && !plan.sequence_parallel);
  count("replicas of shards", plan.dp_replicate > 1);
  count("tied embeddings over stages", drawn.job.model.tied_embeddings && plan.pp > 1);
  count("uneven layers", !plan.layers_per_chunk.empty());
  for (const Schedule schedule : {Schedule::kNone, Schedule::kGpipe, Schedule::k1F1B,
                                  Schedule::kInterleaved1F1B, Schedule::kZbH1}) {
    count(std::string(name_of(schedule)), plan.schedule == schedule);
    count(std::string(name_of(schedule)) + ", experts", plan.schedule == schedule && has_experts);
  }
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    count("zero " + std::to_string(zero), plan.zero == zero);
    count("zero " + std::to_string(zero) + ", experts", plan.zero == zero && has_experts);
  }
  count("ring, windows", rings && has_windows);
  count("ring, some windows", rings && has_some_windows);
  count("ring, experts", rings && has_experts);
  count("ring, recompute", rings && recomputes);
  count("ring, zb_h1", rings && splits);
  count("zb_h1, sp", splits && plan.sequence_parallel);
  count("zb_h1, recompute", splits && recomputes);
  count("zb_h1, shared experts, sp", splits && moe.shared_ffn > 0 && plan.sequence_parallel);
  count("zb_h1, shared experts, recompute", splits && moe.shared_ffn > 0 && recomputes);
  count("zb_h1, no shared experts", splits && has_experts && moe.shared_ffn == 0);
  count("zb_h1, ring, experts", splits && rings && has_experts);
  count_recompute(counts, plan.recompute);
}

TEST_CASE("names, bytes and lifetimes of random plans are those of the estimate") {
  RandomPlans random(11);
  std::int64_t plans = 0;
  std::int64_t ranks = 0;
  std::int64_t operations = 0;
  std::int64_t different = 0;
  constexpr std::int64_t kPlans = 5000;
  constexpr std::int64_t kShown = 5;
  constexpr std::int64_t kPlansOfFeature = 40;
  FeatureCounts features;
  while (plans < kPlans) {
    const RandomPlan drawn = random.next();
    const ByteEquality equality(drawn.job, drawn.plan);
    ++plans;
    count_features(features, drawn);
    for (const std::int64_t rank : random.ranks_of(drawn)) {
      const Program program = lower(drawn.job, drawn.plan, rank, {});
      ++ranks;
      operations += std::ssize(program.operations);
      if (const auto difference = equality.difference(program)) {
        ++different;
        if (different <= kShown) {
          MESSAGE(drawn.text() << ": " << *difference);
        }
        break;
      }
    }
  }
  MESSAGE(plans << " plans, " << ranks << " ranks, " << operations << " operations");
  for (const auto& row : features) {
    const auto& feature = row.first;
    const auto& count = row.second;
    CHECK_MESSAGE(count >= kPlansOfFeature, feature << ": " << count);
  }
  CHECK(different == 0);
}

TEST_CASE("where a rank has one row, tokens go in one piece without room for parts") {
  Job job = tiny_job(wide_model(), 8);
  job.sequence_length = 8;
  job.profile.tensor_parallel_chunk_tokens = 1;
  const Plan plan{.tp = 8, .sequence_parallel = true};
  const Program program = lower(job, plan, 0, {});
  for (const Tensor& tensor : program.tensors) {
    if (tensor.name == "exchanged_tokens") {
      CHECK(tensor.bytes == 8 * 16 * 2);  // all tokens of hidden size 16
    }
  }
  CHECK(ByteEquality(job, plan).difference(program).value_or("") == "");
}

TEST_CASE("experts that no layer has take no scratch") {
  Job job = tiny_job(tiny_model(), 1);
  job.sequence_length = 1024;  // more choices of 3 experts to sort than sums of a norm
  job.model.moe = {.num_experts = 4, .topk = 3, .expert_ffn = 8};
  const Plan plan;
  CHECK(ByteEquality(job, plan).difference(lower(job, plan, 0, {})).value_or("") == "");
}

}  // namespace
}  // namespace shardplan
