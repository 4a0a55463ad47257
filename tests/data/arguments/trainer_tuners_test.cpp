// Tuners of ms-swift's own, and axolotl's words for what is trained beside an adapter.
#include <doctest/doctest.h>

#include "tests/data/arguments/trainer_reading.h"

namespace shardplan {
namespace {

RunReading swift(TrainerWords words) {
  words.insert(words.begin(), {"max_length", "1024"});
  return read_trainer_run(TrainerProject::kSwift, words);
}

bool is_refused(const RunReading& run, std::string_view text) {
  return run.unsupported.find(text) != std::string::npos;
}

TEST_CASE("AdaLoRA has the rank that it begins with") {
  const RunReading run = swift({{"tuner_type", "adalora"}, {"lora_rank", "64"}});
  CHECK(run.unsupported == "");
  CHECK(run.job.adapters.kind == AdapterKind::kAdaLora);
  CHECK(run.job.adapters.rank == 12);
  CHECK(run.job.adapters.dropout == 0.05);
  CHECK(run.job.adapters.dtype == DType::kFp32);
  CHECK(run.job.adapters.is_on(LinearLayer::kDown));
  const RunReading wider =
      swift({{"tuner_type", "adalora"}, {"adalora_init_r", "32"}, {"lora_dtype", "bfloat16"}});
  CHECK(wider.job.adapters.rank == 32);
  CHECK(wider.job.adapters.dtype == DType::kFp32);
}

TEST_CASE("ms-swift's adapter is a bottleneck behind every FFN") {
  const RunReading run = swift({{"tuner_type", "adapter"}});
  CHECK(run.unsupported == "");
  CHECK(run.job.adapters.kind == AdapterKind::kBottleneck);
  CHECK(run.job.adapters.rank == 128);
  CHECK(run.job.adapters.is_on(LinearLayer::kDown));
  CHECK_FALSE(run.job.adapters.is_on(LinearLayer::kUp));
  CHECK(is_refused(swift({{"tuner_type", "adapter"}, {"adapter_act", "relu"}}), "gelu"));
}

// Of 16 layers, a copy behind every fourth.
TEST_CASE("LLaMA Pro makes a model longer by copies, which alone are trained") {
  const RunReading run = swift({{"tuner_type", "llamapro"}});
  CHECK(run.unsupported == "");
  CHECK(run.job.adapters.rank == 0);
  CHECK(run.job.model.num_layers() == 20);
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  CHECK(run.job.name_rules ==
        std::vector<NameRule>{{.pattern = ""},
                              {.pattern = R"(\.layers\.(4|9|14|19)\.)", .trains = true}});
  CHECK(has_note(run, "took 20 layers, of which 4 are copies"));
  CHECK(is_refused(swift({{"tuner_type", "llamapro"}, {"llamapro_num_new_blocks", "3"}}),
                   "3 of a model of 16 layers"));
}

// transformers 5.17 Llama4Router gives two tensors, of which peft 0.21 lora.Linear asks a type.
TEST_CASE("an adapter on Llama 4's router does not run, and names without it do") {
  const auto of = [](TrainerWords words) {
    words.insert(words.end(), {{"max_length", "1024"}, {"tuner_type", "lora"}});
    return read_trainer_run(TrainerProject::kSwift, words, "llama4-scout");
  };
  CHECK(has_note(of({}), "Llama 4's router"));
  const RunReading named =
      of({{"target_regex", R"(^(language_model).*\.(q_proj|k_proj|up_proj)$)"}});
  CHECK_FALSE(has_note(named, "Llama 4's router"));
  CHECK(named.job.adapters.is_on(LinearLayer::kUp));
  CHECK_FALSE(named.job.adapters.is_on(LinearLayer::kDown));
}

TEST_CASE("tuners that do not start, or are not described, are refused with their reason") {
  CHECK(is_refused(swift({{"tuner_type", "bone"}}), "no BoneConfig from 0.19 on"));
  CHECK(is_refused(swift({{"tuner_type", "longlora"}}), "num_heads"));
  CHECK(is_refused(swift({{"tuner_type", "boft"}}), "butterflies"));
  CHECK(is_refused(swift({{"tuner_type", "reft"}}), "pyreft"));
  CHECK(is_refused(swift({{"tuner_type", "vera"}}), "tuner_type vera: full and lora"));
  CHECK(is_refused(swift({{"tuner_type", "full"}, {"lisa_activated_layers", "2"}}),
                   "does not start"));
}

RunReading axolotl(const std::string& unfrozen) {
  return read_trainer_run(
      TrainerProject::kAxolotl,
      {{"adapter", "lora"}, {"lora_target_linear", "true"}, {"unfrozen_parameters", unfrozen}});
}

// Dots of an expression are dots, and it fits from the beginning of a name.
TEST_CASE("beside an adapter axolotl trains what its expressions fit, by peft's names") {
  CHECK(is_refused(axolotl("^model.language_model.*, ^lm_head.*"), "trains nothing"));
  CHECK(is_refused(axolotl("base_model.model.model.layers.[0-3].[a-z_]+.[a-z_]+.lora_"),
                   "fit some adapters or frozen weights"));
  CHECK(is_refused(axolotl("base_model.model.lm_head.weight"), "frozen weights"));
  const RunReading all = axolotl("base_model.model.model.layers.[0-9]+.[a-z_]+.[a-z_]+.lora_");
  CHECK(all.unsupported == "");
  CHECK(all.job.adapters.rank > 0);
  CHECK(all.job.name_rules.empty());
}

}  // namespace
}  // namespace shardplan
