#include "estimator/plan/model_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/validity/unsupported.h"
#include "tests/estimator/llama_job.h"

using namespace shardplan;

namespace {

ModelSpec llama() {
  return llama_model({.hidden = 512, .ffn = 1024, .heads = 4, .layers = 4});
}

}  // namespace

TEST_CASE("a model of Llama's parts misses none") {
  CHECK_FALSE(missing_part(llama(), {}));
}

TEST_CASE("a part is missing where one layer has it, and not where it is known") {
  ModelSpec model = llama();
  model.layers[2].mixer = MixerKind::kGatedDelta;
  REQUIRE(missing_part(model, {}) == ModelPart::kGatedDelta);
  CHECK(name_of(ModelPart::kGatedDelta) == "gated delta net");
  CHECK_FALSE(missing_part(model, {ModelPart::kGatedDelta}));
  model.layers[3].has_sinks = true;
  CHECK(missing_part(model, {ModelPart::kGatedDelta}) == ModelPart::kSinks);
}

TEST_CASE("every part has a name of its own") {
  std::vector<std::string_view> names;
  for (int part = 0; part < kNumModelParts; ++part) {
    names.push_back(name_of(static_cast<ModelPart>(part)));
  }
  std::ranges::sort(names);
  CHECK(std::ranges::adjacent_find(names) == names.end());
}

TEST_CASE("every framework refuses a part that it has no piece for, by its name") {
  Job job;
  job.model = llama();
  job.model.family = "mystery";
  job.model.residual_streams.count = 4;
  for (const auto& row : kMemoryModels) {
    set_framework(job.profile, row.value);
    job.profile.layout.model_parts = {};
    const auto rules = validity_rules(job.profile);
    const auto rule = std::ranges::find(rules, kKnownModelParts.name, &ValidityRule::name);
    REQUIRE(rule != rules.end());
    CHECK(rule->broken(job, Plan{}));
    CHECK(rule->explain(job, Plan{})
              .starts_with("model.layers several residual streams (mystery) is not modelled for "));
  }
}

TEST_CASE("transformers and DeepSpeed train a model without its modules of prediction") {
  for (const auto& row : kMemoryModels) {
    Job job;
    set_framework(job.profile, row.value);
    job.model = llama();
    job.model.num_mtp_layers = 2;
    const std::string left_out = leave_out_modules(job);
    CAPTURE(row.name);
    const bool has_no_modules = row.name == "transformers" || row.name == "deepspeed";
    CHECK(job.model.num_mtp_layers == (has_no_modules ? 0 : 2));
    CHECK(left_out.starts_with("model: found 2 modules") == has_no_modules);
    CHECK(leave_out_modules(job).empty());
  }
}
