// How a Trainer's run has its weights and its loss: quantized checkpoints, starts of adapters,
// parts of Liger's kernels and losses of weighted tokens.
#include <doctest/doctest.h>

#include "data/read/case_tuning.h"
#include "estimator/estimate.h"
#include "tests/data/arguments/trainer_reading.h"

namespace shardplan {
namespace {

bool is_refused(const RunReading& run, const char* reason) {
  return run.unsupported.find(reason) != std::string::npos;
}

}  // namespace

TEST_CASE("a checkpoint in 4 bits is told by the ends of its name, with its storage") {
  for (const char* const name :
       {"hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "some/Llama-3.2-1B-bnb-nf4"}) {
    CAPTURE(name);
    const RunReading run =
        read_trainer_run(TrainerProject::kAxolotl, {{"adapter", "qlora"}, {"base_model", name}});
    CHECK(run.job.quantized == QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
    CHECK(has_note(run, "took nf4 with quantized scales"));
  }
  CHECK(is_refused(
      read_trainer_run(TrainerProject::kAxolotl,
                       {{"adapter", "qlora"}, {"base_model", "a/B-bnb-nf4-bf16"}}, "mixtral-8x7b"),
      "model a/B-bnb-nf4-bf16: a checkpoint in 4 bits has experts"));
  CHECK(unpacked_name("a/B-unsloth-bnb-4bit") == "a/B-unsloth-bnb-4bit");
  CHECK(unpacked_name("a/B-BNB-NF4-BF16") == "a/B");
  CHECK(unpacked_name("a/B-bnb-4bit") == "a/B");
  CHECK(unpacked_name("a/B") == "a/B");
}

// Experts in MXFP4 are trained as bf16 alone.
TEST_CASE("weights that are dequantized as they are loaded are those of bf16") {
  using enum TrainerProject;
  const TrainerWords mxfp4 = {{"model_quantization_config", "Mxfp4Config"}};
  const auto with = [&](const std::string& name, const std::string& value) {
    TrainerWords words = mxfp4;
    words.push_back({name, value});
    return read_trainer_run(kAxolotl, words);
  };
  const RunReading run = with("model_quantization_config_kwargs.dequantize", "true");
  CHECK(run.unsupported.empty());
  CHECK(run.job.quantized == QuantizedWeights{});
  CHECK(has_note(run, "took weights of bf16"));
  CHECK(is_refused(read_trainer_run(kAxolotl, mxfp4), "Mxfp4Config without"));
  CHECK(is_refused(with("model_quantization_config_kwargs.dequantize", "false"), "without"));
  CHECK(is_refused(read_trainer_run(kAxolotl, {{"model_quantization_config", "HqqConfig"}}),
                   "model_quantization_config HqqConfig: Mxfp4Config and FineGrainedFP8Config"));
}

TEST_CASE("LoftQ and ReLoRA have the memory of LoRA, which is said") {
  using enum TrainerProject;
  const TrainerWords lora = {{"adapter", "lora"}, {"lora_target_linear", "true"}};
  const RunReading plain = read_trainer_run(kAxolotl, lora);
  for (const auto& [word, said] :
       {std::pair{std::pair{"peft.loftq_config.loftq_bits", "4"}, "LoftQ's frozen weights"},
        std::pair{std::pair{"relora", "true"}, "the merges in between"}}) {
    const std::string name = word.first;
    CAPTURE(name);
    TrainerWords words = lora;
    words.push_back({name, word.second});
    const RunReading run = read_trainer_run(kAxolotl, words);
    CHECK(run.unsupported.empty());
    CHECK(run.job.adapters == plain.job.adapters);
    CHECK(run.job.quantized == plain.job.quantized);
    CHECK(has_note(run, said));
  }
  CHECK(
      is_refused(read_trainer_run(kAxolotl, {{"relora", "true"}}), "relora true without adapters"));
  CHECK(has_note(read_trainer_run(kSwift, {{"init_weights", "lora-ga"}}), "LoRA-GA's gradients"));
  CHECK_FALSE(has_note(read_trainer_run(kSwift, {{"init_weights", "true"}}), "LoRA-GA"));
}

TEST_CASE("Liger's kernels of layers run with or without its loss") {
  using enum TrainerProject;
  const TrainerWords layers = {{"plugins", "axolotl.integrations.liger.LigerPlugin"},
                               {"liger_rope", "true"},
                               {"liger_rms_norm", "true"},
                               {"liger_glu_activation", "true"}};
  const RunReading stock = read_trainer_run(kAxolotl, layers);
  CHECK(stock.unsupported.empty());
  CHECK(stock.job.profile.liger_kernel == LigerKernel::kThrough082);
  CHECK(stock.job.profile.head_loss == HeadLoss::kStock);
  TrainerWords cut = layers;
  cut.push_back({"cut_cross_entropy", "true"});
  CHECK(read_trainer_run(kAxolotl, cut).job.profile.head_loss == HeadLoss::kCutCrossEntropy);
  TrainerWords fused = layers;
  fused.push_back({"liger_fused_linear_cross_entropy", "true"});
  CHECK(read_trainer_run(kAxolotl, fused).job.profile.head_loss == HeadLoss::kFusedLinear);
  TrainerWords part = layers;
  part.pop_back();
  CHECK(is_refused(read_trainer_run(kAxolotl, part), "a part of Liger's kernels"));
  CHECK(is_refused(read_trainer_run(kAxolotl, {{"liger_fused_linear_cross_entropy", "true"}}),
                   "a part of Liger's kernels"));
}

TEST_CASE("losses of weighted tokens are each program's own") {
  using enum TrainerProject;
  const auto of = [](TrainerProject project, const char* name) {
    const RunReading run = read_trainer_run(project, {{name, "true"}});
    CHECK_MESSAGE(run.unsupported.empty(), run.unsupported);
    return run.job.profile.head_loss;
  };
  CHECK(of(kFactory, "use_dft_loss") == HeadLoss::kByProbability);
  CHECK(of(kFactory, "use_eaft_loss") == HeadLoss::kByEntropy);
  CHECK(of(kAxolotl, "use_eaft") == HeadLoss::kByEntropyOfRows);
  CHECK(of(kSwift, "enable_dft_loss") == HeadLoss::kByProbability);
  CHECK(read_trainer_run(kFactory, {{"use_dft_loss", "false"}}).job.profile.head_loss ==
        HeadLoss::kStock);
  const RunReading anchored =
      read_trainer_run(kFactory, {{"use_asft_loss", "true"}, {"finetuning_type", "full"}});
  CHECK(anchored.job.profile.head_loss == HeadLoss::kAnchored);
  CHECK(anchored.unsupported.empty());
  CHECK_FALSE(why_invalid(anchored.job, anchored.plan).has_value());
  const RunReading adapted = read_trainer_run(kFactory, {{"use_asft_loss", "true"}});
  CHECK(why_invalid(adapted.job, adapted.plan)->rule == "asft_trains_whole_models");
}

TEST_CASE("quantization-aware training of axolotl is in 8 and 4 bits, or refused by name") {
  const auto of = [](const TrainerWords& words) {
    return read_trainer_run(TrainerProject::kAxolotl, words);
  };
  const RunReading run = of({{"qat.activation_dtype", "int8"},
                             {"qat.weight_dtype", "int4"},
                             {"qat.group_size", "32"},
                             {"cut_cross_entropy", "true"},
                             {"attn_implementation", "flash_attention_2"}});
  CHECK_MESSAGE(run.unsupported.empty(), run.unsupported);
  CHECK(run.job.profile.fake_quantization == FakeQuantization::kInt8Int4);
  CHECK(run.job.profile.fake_quantization_group == 32);
  CHECK(of({}).job.profile.fake_quantization == FakeQuantization::kNone);
  CHECK(is_refused(of({{"qat.weight_dtype", "nvfp4"}, {"qat.activation_dtype", "nvfp4"}}),
                   "qat.weight_dtype nvfp4: torchao's QAT does not start"));
  CHECK(is_refused(of({{"qat.weight_dtype", "mxfp4"}, {"qat.activation_dtype", "mxfp4"}}),
                   "qat of mxfp4 activations and mxfp4 weights"));
  CHECK(is_refused(of({{"qat.group_size", "32"}}), "qat of none activations and int8 weights"));
  CHECK(is_refused(of({{"qat.weight_dtype", "int4"},
                       {"qat.activation_dtype", "int8"},
                       {"qat.quantize_embedding", "true"}}),
                   "and an embedding"));
}

TEST_CASE("LLaMA-Factory's OFT turns blocks of inputs of all linear layers") {
  const auto of = [](const TrainerWords& words) {
    TrainerWords all = {{"finetuning_type", "oft"}};
    all.insert(all.end(), words.begin(), words.end());
    return read_trainer_run(TrainerProject::kFactory, all);
  };
  const RunReading run = of({});
  CHECK_MESSAGE(run.unsupported.empty(), run.unsupported);
  CHECK(run.job.adapters.kind == AdapterKind::kOft);
  CHECK(run.job.adapters.rank == 32);
  CHECK(run.job.adapters.dtype == DType::kFp32);
  CHECK(run.job.adapters.targets == all_targets().on);
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  CHECK(of({{"oft_block_size", "64"}}).job.adapters.rank == 64);
  CHECK(of({{"oft_target", "q_proj,v_proj"}}).job.adapters.targets ==
        targets_named({"q_proj", "v_proj"}).on);
  CHECK(is_refused(of({{"oft_rank", "8"}, {"oft_block_size", "0"}}), "oft with oft_rank"));
  CHECK(is_refused(of({{"module_dropout", "0.1"}}), "module_dropout 0.1: rotations without"));
  CHECK(is_refused(of({{"oft_target", "embed_tokens"}}), "oft_target embed_tokens"));
  CHECK(is_refused(read_trainer_run(TrainerProject::kSwift, {{"tuner_type", "oft"}}),
                   "tuner_type oft: full and lora are described"));
}

TEST_CASE("attention that a class does not find by its word is refused, as the run stops") {
  const auto of = [](const std::string& model, const char* word) {
    return read_trainer_run(TrainerProject::kAxolotl, {{"attn_implementation", word}}, model);
  };
  for (const std::string model : {"falcon-7b", "gpt-j-6b"}) {
    CAPTURE(model);
    CHECK(is_refused(of(model, "xformers"), "has no class of attention of that name"));
  }
  CHECK(is_refused(of("gpt-j-6b", "sdpa"), "gptj has no class of attention of that name"));
  CHECK(of("falcon-7b", "sdpa").unsupported.empty());
  CHECK(of("cerebras-gpt-1.3b", "xformers").unsupported.empty());
}

}  // namespace shardplan
