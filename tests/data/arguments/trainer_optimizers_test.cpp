// Optimizers that LLaMA-Factory and ms-swift bring along, as their settings are read.
#include "data/arguments/trainer_optimizers.h"

#include <doctest/doctest.h>

#include "tests/data/arguments/trainer_reading.h"

namespace shardplan {
namespace {

RunReading factory(TrainerWords words) {
  words.insert(words.begin(), {{"finetuning_type", "full"}, {"cutoff_len", "1024"}});
  return read_trainer_run(TrainerProject::kFactory, words);
}

RunReading swift(TrainerWords words) {
  words.insert(words.begin(), {{"tuner_type", "full"}, {"max_length", "1024"}});
  return read_trainer_run(TrainerProject::kSwift, words);
}

TEST_CASE("LLaMA-Factory's GaLore and APOLLO are read with rank and steps") {
  const RunReading galore = factory({{"use_galore", "true"},
                                     {"galore_layerwise", "true"},
                                     {"galore_rank", "128"},
                                     {"pure_bf16", "true"}});
  CHECK(galore.unsupported == "");
  CHECK(galore.job.optimizer == OptimizerKind::kGaLore);
  CHECK(galore.job.profile.projection_rank == 128);
  CHECK(galore.job.profile.optimizer_steps == OptimizerSteps::kInBackward);
  CHECK(has_note(galore, "took adamw_torch"));
  const RunReading apollo = factory({{"use_apollo", "true"}, {"optim", "adamw_torch"}});
  CHECK(apollo.unsupported == "");
  CHECK(apollo.job.optimizer == OptimizerKind::kApollo);
  CHECK(apollo.job.profile.projection_rank == 16);
  CHECK(apollo.job.profile.optimizer_steps == OptimizerSteps::kTogether);
  CHECK_FALSE(has_note(apollo, "took adamw_torch"));
}

TEST_CASE("ms-swift's GaLore steps behind the gradients, by one optimizer or one a parameter") {
  const RunReading galore = swift({{"use_galore", "true"}});
  CHECK(galore.unsupported == "");
  CHECK(galore.job.profile.projection_rank == 128);
  CHECK(galore.job.profile.optimizer_steps == OptimizerSteps::kMatricesFirst);
  CHECK(swift({{"use_galore", "true"}, {"galore_optim_per_parameter", "true"}})
            .job.profile.optimizer_steps == OptimizerSteps::kOneByOne);
}

// The weights of a step of BAdam stay in the checkpoint's type.
TEST_CASE("BAdam trains the layer of which a step holds most, in bf16") {
  const RunReading run = factory({{"use_badam", "true"}});
  CHECK(run.unsupported == "");
  CHECK(run.job.optimizer == OptimizerKind::kBAdam);
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  CHECK(run.job.name_rules ==
        std::vector<NameRule>{{.pattern = ""}, {.pattern = R"(\.layers\.0\.)", .trains = true}});
  CHECK_FALSE(run.job.profile.checkpoints_frozen);
  const RunReading fixed =
      factory({{"use_badam", "true"}, {"badam_switch_mode", "fixed"}, {"badam_start_block", "3"}});
  CHECK(fixed.job.name_rules.back().pattern == R"(\.layers\.3\.)");
}

TEST_CASE("Adam-mini and MuonClip are read") {
  CHECK(factory({{"use_adam_mini", "true"}}).job.optimizer == OptimizerKind::kAdamMini);
  const RunReading clipped =
      swift({{"optimizer", "muonclip"}, {"optim_args", "qk_clip_threshold=10000"}});
  CHECK(clipped.unsupported == "");
  CHECK(clipped.job.optimizer == OptimizerKind::kMuonClip);
}

TEST_CASE("what of these optimizers is not described is refused by name") {
  const auto refuses = [](const RunReading& run, const char* text) {
    CAPTURE(run.unsupported);
    CHECK(run.unsupported.find(text) != std::string::npos);
  };
  refuses(factory({{"use_galore", "true"}, {"optim", "adamw_torch_fused"}}), "does not start");
  refuses(factory({{"use_galore", "true"}, {"optim", "adamw_8bit"}}), "moments of 8 bits");
  refuses(factory({{"use_apollo", "true"}, {"optim", "adafactor"}}), "does not start");
  refuses(factory({{"use_galore", "true"}, {"galore_proj_type", "full"}}), "std is described");
  refuses(factory({{"use_galore", "true"}, {"galore_target", "q_proj"}}), "all is described");
  refuses(factory({{"use_apollo", "true"}, {"apollo_proj", "svd"}}), "random is described");
  refuses(factory({{"use_badam", "true"}, {"badam_mode", "ratio"}}), "layer is described");
  refuses(factory({{"use_badam", "true"}, {"badam_switch_mode", "fixed"}}), "badam_start_block");
  refuses(swift({{"use_galore", "true"}, {"galore_quantization", "true"}}), "Q-GaLore");
  refuses(swift({{"use_galore", "true"}, {"galore_with_embedding", "true"}}), "all linear layers");
  refuses(swift({{"optimizer", "muonclip"}, {"attn_impl", "flash_attn"}}), "FlashAttention");
  refuses(swift({{"optimizer", "muonclip"}, {"optim_args", "nesterov=true"}}), "Nesterov");
  refuses(read_trainer_run(TrainerProject::kAxolotl, {{"optimizer", "muon"}}), "compiler");
  refuses(read_trainer_run(TrainerProject::kTrl, {{"use_galore", "true"}}), "use_galore true");
}

}  // namespace
}  // namespace shardplan
