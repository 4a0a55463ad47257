// A tower beside a text model, counted by hand: batches of text give its parameters no gradients.
#include <doctest/doctest.h>

#include <string>

#include "estimator/estimate.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

// Two layers of Pixtral's of width 128 and FFN 256 in front of a text of width 512.
constexpr std::int64_t kLinear = 2 * (4 * 128 * 128 + 3 * 128 * 256);
constexpr std::int64_t kProjector = 4 * 128 * 128 + 128 * 512 + 512 * 512;
constexpr std::int64_t kRest = 128 * 12 + 128 + 128;  // patches, and norms of patches and projector
constexpr std::int64_t kNorms = 2 * 2 * 128;
constexpr std::int64_t kTower = kLinear + kProjector + kRest + kNorms;

Job job_with_tower(std::int64_t gpus, TowerUse use) {
  Job job = small_trainer_job(gpus);
  job.model.tower = {.kind = TowerKind::kPixtral,
                     .layers = 2,
                     .hidden = 128,
                     .ffn = 256,
                     .patch = 12,
                     .merged = 4};
  job.profile.vision_tower = use;
  return job;
}

TEST_CASE("a tower lies whole on one GPU, and its parameters have no moments, frozen or not") {
  for (const TowerUse use : {TowerUse::kFrozen, TowerUse::kFrozenFloats, TowerUse::kTrained}) {
    const Job job = job_with_tower(1, use);
    const Plan plan = trainer_plan(0);
    CHECK(idle_bytes(job, plan, "vision_tower") == 2 * kTower);
    CHECK(idle_bytes(job, plan, "parameters") == 2 * kSmallModel);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 2 * kSmallModel);
    CHECK(idle_bytes(job, plan, "gradients") ==
          idle_bytes(small_trainer_job(1), plan, "gradients"));
  }
}

TEST_CASE("without a tower that is loaded nothing of it is counted") {
  const Job job = job_with_tower(1, TowerUse::kAbsent);
  CHECK(idle_bytes(job, trainer_plan(0), "vision_tower") == 0);
  CHECK(peak_of(job, trainer_plan(0), MomentKind::kForward) ==
        peak_of(small_trainer_job(1), trainer_plan(0), MomentKind::kForward));
}

TEST_CASE("DDP has buckets for a tower that asks for gradients, and looks for them") {
  const Plan plan = trainer_plan(0);
  CHECK(idle_bytes(job_with_tower(2, TowerUse::kFrozen), plan, "ddp.buckets") == 2 * kSmallModel);
  Job job = job_with_tower(2, TowerUse::kTrained);
  CHECK(idle_bytes(job, plan, "ddp.buckets") == 2 * (kSmallModel + kTower));
  Plan recomputes = plan;
  recomputes.recompute.granularity = RecomputeGranularity::kFull;
  CHECK(why_invalid(job, plan) == std::nullopt);
  const auto why = why_invalid(job, recomputes);
  REQUIRE(why);
  CHECK(why->rule == "ddp_looks_for_parameters_without_gradients");
  job.profile.finds_unused = true;
  CHECK(why_invalid(job, recomputes) == std::nullopt);
}

TEST_CASE("FSDP2 shards a tower, in fp32 where it is trained, and gathers its layers never") {
  const Plan plan = trainer_plan(3);
  for (const TowerUse use : {TowerUse::kFrozen, TowerUse::kTrained}) {
    const Job job = job_with_tower(2, use);
    const std::int64_t width = use == TowerUse::kTrained ? 4 : 2;
    CHECK(idle_bytes(job, plan, "vision_tower") == width * kTower / 2);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel / 2);
  }
  // What is no layer of the tower is the root's, which stays gathered; else the whole tower is.
  Job job = job_with_tower(2, TowerUse::kFrozen);
  const std::int64_t without =
      most_bytes(small_trainer_job(2), plan, MomentKind::kForward, "parameters.gathered");
  CHECK(most_bytes(job, plan, MomentKind::kForward, "parameters.gathered") ==
        without + 2 * (kProjector + kRest));
  job.profile.fsdp_wraps_tower = false;
  CHECK(most_bytes(job, plan, MomentKind::kForward, "parameters.gathered") == without + 2 * kTower);
}

TEST_CASE("FSDP1 gathers what is no layer of the tower with the root, as long as that is whole") {
  Job job = job_with_tower(2, TowerUse::kFrozen);
  Job plain = small_trainer_job(2);
  job.profile.fsdp_version = 1;
  plain.profile.fsdp_version = 1;
  const Plan plan = trainer_plan(3);
  CHECK(idle_bytes(job, plan, "vision_tower") == (kLinear + kNorms));
  CHECK(most_bytes(job, plan, MomentKind::kForward, "parameters.gathered") ==
        most_bytes(plain, plan, MomentKind::kForward, "parameters.gathered") +
            2 * (kProjector + kRest));
  // The last rank's half of the root has no frozen parameter, which lie in front.
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") ==
        idle_bytes(plain, plan, "optimizer.exp_avg") + 4 * (kProjector + kRest) / 2);
}

// Names of Pixtral's layers are those of the text's; the projector's are none of them.
TEST_CASE("adapters by name stand on layers of the tower that have these names") {
  Job job = job_with_tower(1, TowerUse::kFrozen);
  job.adapters = {.rank = 16, .targets = {true, false, true}};
  const Plan plan = trainer_plan(0);
  const std::int64_t of_text = 2 * 16 * (512 + 512 + 512 + 256);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * of_text);
  job.adapters.tower_targets = TowerTargets::kByName;
  const std::int64_t by_name = 2 * 2 * 16 * (128 + 128);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * (of_text + by_name));
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * of_text);
  job.adapters.tower_targets = TowerTargets::kAll;
  const std::int64_t all = 2 * 16 * (4 * (128 + 128) + 3 * (128 + 256)) +
                           16 * ((4 * 128 + 128) + (128 + 512) + (512 + 512));
  CHECK(idle_bytes(job, plan, "adapters") == 4 * (of_text + all));
}

TEST_CASE("linear layers of a tower are packed with the model's, where they are not kept out") {
  Job job = job_with_tower(1, TowerUse::kFrozen);
  job.adapters = adapters_on_all(8);
  job.quantized = {.kind = Quantization::kInt8};
  const Plan plan = trainer_plan(0);
  // A byte an element, and a scale of fp32 for each output.
  const std::int64_t outputs = 2 * (4 * 128 + 2 * 256 + 128) + 128 + 512 + 512;
  CHECK(idle_bytes(job, plan, "vision_tower") ==
        kLinear + kProjector + 4 * outputs + 2 * (kRest + kNorms));
  job.profile.vision_tower = TowerUse::kFrozenFloats;
  CHECK(idle_bytes(job, plan, "vision_tower") == 2 * kTower);
}

TEST_CASE("a tower whose sizes nobody states is refused by the model's name") {
  Job job = small_trainer_job(1);
  job.model.name = "a-model";
  job.profile.vision_tower = TowerUse::kFrozen;
  const auto why = why_invalid(job, trainer_plan(0));
  REQUIRE(why);
  CHECK(why->rule == "unsupported: vision_tower");
  CHECK(why->message.find("a-model") != std::string::npos);
}

}  // namespace
}  // namespace shardplan::transformers
