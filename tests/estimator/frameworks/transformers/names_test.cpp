// Parameters that are trained by their names, counted by hand.
#include <doctest/doctest.h>

#include <string>

#include "estimator/estimate.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

Job job_training(std::int64_t gpus, const std::string& pattern) {
  Job job = small_trainer_job(gpus);
  job.name_rules = {{.pattern = "", .trains = false}, {.pattern = pattern, .trains = true}};
  return job;
}

TEST_CASE("moments and buckets are those of parameters whose names fit") {
  const Plan plan = trainer_plan(0);
  const auto check = [&](const std::string& pattern, std::int64_t elements) {
    CAPTURE(pattern);
    CHECK(idle_bytes(job_training(1, pattern), plan, "optimizer.exp_avg") == 2 * elements);
    CHECK(idle_bytes(job_training(2, pattern), plan, "ddp.buckets") == 2 * elements);
    CHECK(idle_bytes(job_training(1, pattern), plan, "parameters") == 2 * kSmallModel);
  };
  check("^model\\.layers\\.1\\.", kSmallLayer);
  check("lm_head", kSmallTable);
  check("^model\\.embed_tokens\\.weight$|^model\\.norm\\.", kSmallTable + 512);
  check("mlp\\.(gate|up)_proj", 2 * 2 * 512 * 1024);
  check("self_attn\\.k_proj\\.weight", 2 * 512 * 256);
  check("layernorm", 2 * 2 * 512);
  check("", kSmallModel);
}

TEST_CASE("the last rule that fits a name counts, and without one a parameter is trained") {
  Job job = small_trainer_job(1);
  job.name_rules = {{.pattern = "layers", .trains = false}, {.pattern = "q_proj", .trains = true}};
  CHECK(idle_bytes(job, trainer_plan(0), "optimizer.exp_avg") ==
        2 * (2 * kSmallTable + 512 + 2 * 512 * 512));
}

// Nothing below the first trained parameter has a gradient, and so operators there save nothing.
TEST_CASE("of frozen layers at the bottom nothing is kept for the backward pass") {
  for (const char* const row : {"layer.attention", "layer.ffn"}) {
    CAPTURE(row);
    const std::int64_t all = saved_bytes(small_trainer_job(1), row);
    CHECK(saved_bytes(job_training(1, "layers\\.1\\."), row) == all / 2);
    CHECK(saved_bytes(job_training(1, "lm_head"), row) == 0);
  }
  // The first norm above frozen layers has no gradient to pass on.
  CHECK(saved_bytes(job_training(1, "layers\\.1\\."), "layer.norm") <
        saved_bytes(small_trainer_job(1), "layer.norm") / 2);
}

// A frozen product above a trained one passes its gradient on, which its input is not needed for.
TEST_CASE("frozen weights above a trained one save no inputs") {
  const std::int64_t all = saved_bytes(small_trainer_job(1), "layer.ffn");
  const std::int64_t frozen = saved_bytes(job_training(1, "embed_tokens"), "layer.ffn");
  // The product of gate and up, which the down projection alone would need.
  CHECK(all - frozen == 2 * 2 * 512 * 1024);
}

TEST_CASE(
    "recomputed layers that are frozen keep their input, as the embedding asks for a gradient") {
  Job job = job_training(1, "lm_head");
  Plan plan = trainer_plan(0);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  const std::int64_t with_inputs =
      most_bytes(job, plan, MomentKind::kLossForward, "layer.residual");
  job.profile.checkpoints_frozen = false;
  CHECK(with_inputs - most_bytes(job, plan, MomentKind::kLossForward, "layer.residual") ==
        2 * 2 * 512 * 512);
}

TEST_CASE("FSDP2 reduces and steps shards of trained parameters alone") {
  const Plan plan = trainer_plan(3);
  const Job job = job_training(2, "layers\\.1\\.");
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallLayer / 2);
  CHECK(idle_bytes(job, plan, "parameters.shards") ==
        (4 * kSmallLayer + 2 * (kSmallModel - kSmallLayer)) / 2);
}

TEST_CASE(
    "frozen parameters stay in bf16 beside trained ones in fp32 where the program keeps them") {
  Job job = job_training(1, "layers\\.1\\.");
  job.profile.weights_dtype = DType::kFp32;
  CHECK(idle_bytes(job, trainer_plan(0), "parameters") == 4 * kSmallModel);
  job.profile.narrow_frozen = true;
  CHECK(idle_bytes(job, trainer_plan(0), "parameters") ==
        4 * kSmallLayer + 2 * (kSmallModel - kSmallLayer));
}

TEST_CASE("names that fit nothing, or are not known, are refused") {
  const auto rule_of = [](const Job& job) {
    const auto why = why_invalid(job, trainer_plan(0));
    return why ? std::string(why->rule) : "";
  };
  Job job = job_training(1, "layers\\.7\\.");
  CHECK(rule_of(job) == "name_rules_train_something");
  job = job_training(1, "lm_head");
  CHECK(rule_of(job) == "");
  job.model.family = "exaone4";
  CHECK(rule_of(job) == "unsupported: name_rules");
  job = job_training(1, "lm_head");
  job.adapters = {.rank = 8, .targets = {true}};
  CHECK(rule_of(job) == "unsupported: name_rules");
}

}  // namespace
}  // namespace shardplan::transformers
