// Trainings of transformers' Trainer around DeepSpeed: LLaMA-Factory's and axolotl's YAML, TRL's,
// scripts and accelerate's configurations, held against the options that say the same.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/data/message_of.h"
#include "tests/tools/from/trainer_folder.h"
#include "tools/from/file.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

constexpr const char* kFactory = R"yaml(
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
deepspeed: configs/zero3.json
dataset: some_text
template: llama3
cutoff_len: 4096
output_dir: saves/a
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-5
bf16: true
resume_from_checkpoint: null
)yaml";

// Llama-3-8B under ZeRO-3 with two sequences of 4096 tokens, four microbatches.
std::string numbers_of_options(const Words& more) {
  Words words = {"estimate",
                 "--model",
                 "llama3-8b",
                 "--cluster",
                 "1x8-h100",
                 "--framework",
                 "deepspeed",
                 "--zero",
                 "3",
                 "--micro-batch",
                 "2",
                 "--global-batch",
                 "64",
                 "--sequence-length",
                 "4096",
                 "--set",
                 "reduce_bucket_elements=200000000",
                 "--set",
                 "overlap_comm=off"};
  words.insert(words.end(), more.begin(), more.end());
  return numbers_of(run_in_full(words));
}

}  // namespace

TEST_CASE("a training of LLaMA-Factory is the run that its options say, with recomputation") {
  const TrainerFolder folder;
  const ProgramRun run = folder.estimate("sft.yaml", kFactory);
  CHECK(numbers_of(run) == numbers_of_options({"--recompute", "full"}));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  CHECK(contains(run.err, "cutoff_len: found 4096, took all sequences to be as long"));
  const ProgramRun kept =
      folder.estimate("sft.yaml", std::string(kFactory) + "disable_gradient_checkpointing: true\n");
  CHECK(numbers_of(kept) == numbers_of_options({}));
  const ProgramRun shorter =
      folder.estimate("sft.yaml", kFactory, {"--sequence-length", "2048", "--set", "bf16=true"});
  CHECK(contains(shorter.out, "64 sequences of 2,048 tokens"));
}

TEST_CASE("what trains less than all parameters, or otherwise, is refused by name") {
  const TrainerFolder folder;
  const auto answer = [&](const std::string& part, const std::string& other) {
    return folder.estimate("sft.yaml", with(kFactory, part, other)).out;
  };
  CHECK(contains(answer("finetuning_type: full", "finetuning_type: oft"),
                 "UNSUPPORTED  adapters.kind: adapters.kind oft"));
  CHECK(contains(answer("stage: sft", "stage: ppo"), "UNSUPPORTED  stage ppo"));
  CHECK(contains(answer("bf16: true", "bf16: true\noptim: adamw_mini"),
                 "UNSUPPORTED  optim adamw_mini"));
  CHECK(contains(answer("deepspeed: configs/zero3.json", "tensor_model_parallel_size: 1"),
                 "UNSUPPORTED  use_mca true: LLaMA-Factory's training by Megatron-Core"));
}

TEST_CASE("LLaMA-Factory's version 1 is its own loop, and what of it is not described is named") {
  const TrainerFolder folder;
  const std::string file =
      "model: Qwen/Qwen3-4B\nmodel_class: llm\nkernel_config:\n  name: auto\nquant_config: null\n"
      "dist_config:\n  name: fsdp2\n  dcp_path: null\ntrain_dataset: data/a.yaml\n"
      "micro_batch_size: 1\ncutoff_len: 2048\nlearning_rate: 1.0e-4\nmax_steps: 10\n"
      "sample_backend: hf\nmax_new_tokens: 128\n";
  const ProgramRun run = folder.estimate("sft.yaml", file);
  CHECK(contains(run.out, "FITS"));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  const ProgramRun frozen = folder.estimate("sft.yaml", file + "peft_config:\n  name: freeze\n");
  CHECK(contains(frozen.out, "FITS"));
  CHECK(contains(frozen.out, "parameters   frozen: all, then trained: \\.(34|35)\\."));
  CHECK(contains(folder.estimate("sft.yaml", file + "optim_config:\n  name: muon\n").out, "FITS"));
  CHECK(contains(folder.estimate("sft.yaml", file + "optim_config:\n  name: lion\n").out,
                 "UNSUPPORTED  optim_config.name lion"));
  CHECK(contains(folder.estimate("sft.yaml", file + "cp_size: 2\n").out,
                 "UNSUPPORTED  cp_size 2 without flash_attn flash_attention_2"));
  CHECK(contains(folder.estimate("sft.yaml", with(file, "name: fsdp2", "name: deepspeed")).err,
                 "found deepspeed without dist_config.config_file"));
  CHECK(contains(folder.estimate("sft.yaml", with(file, "Qwen3-4B", "Qwen3.5-4B")).err,
                 "loads qwen3.5-4b with its tower for pictures or sound, which is counted"));
  CHECK(contains(folder.estimate("sft.yaml", with(file, "Qwen3-4B", "gemma-3n-E2B")).out,
                 "UNSUPPORTED"));
}

TEST_CASE("Liger's kernels are the option liger_kernel, whoever asks for them") {
  const TrainerFolder folder;
  const std::string full = std::string(kFactory) + "enable_liger_kernel: true\n";
  const ProgramRun run = folder.estimate("sft.yaml", full);
  CHECK(numbers_of(run) ==
        numbers_of_options({"--recompute", "full", "--set", "liger_kernel=through_0.8.2"}));
  CHECK(contains(run.err, "enable_liger_kernel: found true, took Liger up to 0.8.2"));
  CHECK(numbers_of(folder.estimate("sft.yaml", full, {"--set", "liger_kernel=on"})) ==
        numbers_of_options({"--recompute", "full", "--set", "liger_kernel=on"}));
  const std::string axolotl =
      "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
      "gradient_accumulation_steps: 4\nbf16: auto\ndeepspeed: configs/zero3.json\n"
      "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true\n"
      "liger_rms_norm: true\nliger_layer_norm: true\nliger_glu_activation: true\n";
  CHECK(
      numbers_of(folder.estimate("a.yml", axolotl + "liger_fused_linear_cross_entropy: true\n")) ==
      numbers_of_options({"--set", "liger_kernel=through_0.8.2"}));
  CHECK(contains(folder.estimate("a.yml", axolotl).out, "UNSUPPORTED  a part of Liger's kernels"));
  CHECK(contains(folder.estimate("a.yml", with(axolotl, "liger.LigerPlugin", "kd.KDPlugin")).out,
                 "UNSUPPORTED  plugins axolotl.integrations.kd.KDPlugin"));
}

TEST_CASE("axolotl's sizes of groups say how many GPUs there are") {
  const std::string run = "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\n";
  const auto gpus = [&](const std::string& sizes) {
    return settings_from_yaml(run + sizes, "a.yml").num_gpus;
  };
  const std::string all =
      "dp_shard_size: 4\ndp_replicate_size: 2\ntensor_parallel_size: 2\n"
      "context_parallel_size: 2\n";
  CHECK(gpus(all) == 32);
  CHECK(gpus("dp_shard_size: 4\n") == 4);
  CHECK(gpus("tensor_parallel_size: 2\n") == 0);
  CHECK(gpus("dp_shard_size: four\n") == 0);
}

TEST_CASE("axolotl's names mean what the Trainer's mean, and only it recomputes when told to") {
  const TrainerFolder folder;
  const std::string text =
      "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
      "gradient_accumulation_steps: 4\nbf16: auto\noptimizer: adamw_torch_fused\n"
      "deepspeed: configs/zero3.json\nsample_packing: true\n";
  CHECK(numbers_of(folder.estimate("a.yml", text)) == numbers_of_options({}));
  CHECK(numbers_of(folder.estimate("a.yml", text + "gradient_checkpointing: true\n")) ==
        numbers_of_options({"--recompute", "full"}));
  const std::string inner =
      "deepspeed:\n  bf16:\n    enabled: auto\n  zero_optimization:\n    stage: 3\n"
      "    reduce_bucket_size: 200000000\n    overlap_comm: false\n";
  CHECK(numbers_of(folder.estimate("a.yml", with(text, "deepspeed: configs/zero3.json\n",
                                                 inner))) == numbers_of_options({}));
}

TEST_CASE("a script that starts the Trainer is read with what its launcher says") {
  const TrainerFolder folder;
  const std::string arguments =
      " train.py --model_name_or_path meta-llama/Llama-3-8B-hf --deepspeed configs/zero3.json "
      "--model_max_length 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
      "--bf16 True --gradient_checkpointing --learning_rate 2e-5\n";
  const std::string expected = numbers_of_options({"--recompute", "full"});
  for (const char* const launcher :
       {"torchrun --nproc_per_node=8", "accelerate launch --num_processes 8", "deepspeed"}) {
    CHECK(numbers_of(folder.estimate("run.sh", launcher + arguments)) == expected);
  }
  CHECK(contains(folder.estimate("run.sh", "accelerate launch --num_processes 16" + arguments).err,
                 "the run's launcher starts 16 ranks"));
}

TEST_CASE("a script that starts a trainer with its YAML is that file's training") {
  const TrainerFolder folder;
  const std::string expected = numbers_of(folder.estimate("sft.yaml", kFactory));
  for (const char* const line :
       {"NPROC_PER_NODE=8 llamafactory-cli train sft.yaml",
        "torchrun --nproc_per_node 8 --nnodes 1 src/train.py examples/sft.yaml",
        "accelerate launch --num_processes 8 -m axolotl.cli.train sft.yaml",
        "axolotl train sft.yaml",
        "deepspeed --include localhost:0,1,2,3,4,5,6,7 train.py sft.yaml"}) {
    CAPTURE(line);
    CHECK(numbers_of(folder.estimate("run.sh", std::string(line) + "\n")) == expected);
  }
  CHECK(
      contains(folder.estimate("run.sh", "NPROC_PER_NODE=4 llamafactory-cli train sft.yaml\n").err,
               "the run's launcher starts 4 ranks"));
  CHECK(contains(
      folder.estimate("run.sh", "deepspeed --include a:0,1@b:0,1 src/train.py sft.yaml\n").err,
      "the run's launcher starts 4 ranks"));
}

TEST_CASE("accelerate's own words for DeepSpeed are a configuration, also beside TRL's") {
  const TrainerFolder folder;
  const std::string accelerate =
      "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 3\n"
      "  offload_optimizer_device: none\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
      "num_processes: 8\n";
  const std::string file = folder.add("zero3.yaml", accelerate);
  Words options = {"estimate", "--model",           "llama3-8b", "--cluster",
                   "1x8-h100", "--framework",       "deepspeed", "--zero",
                   "3",        "--micro-batch",     "2",         "--global-batch",
                   "64",       "--sequence-length", "4096"};
  const std::string expected = numbers_of(run_in_full(options));
  CHECK(numbers_of(folder.estimate("zero3.yaml", accelerate,
                                   {"--model", "llama3-8b", "--sequence-length", "4096",
                                    "--micro-batch", "2", "--num-microbatches", "4"})) == expected);
  Words on_host = options;
  on_host.insert(on_host.end(), {"--offload-optimizer", "1", "--offload-parameters", "on"});
  CHECK(numbers_of(
            folder.estimate("host.yaml",
                            with(accelerate, "offload_optimizer_device: none",
                                 "offload_optimizer_device: cpu\n  offload_param_device: cpu"),
                            {"--model", "llama3-8b", "--sequence-length", "4096", "--micro-batch",
                             "2", "--num-microbatches", "4"})) == numbers_of(run_in_full(on_host)));
  const std::string trl =
      "model_name_or_path: meta-llama/Meta-Llama-3-8B\ndataset_name: a\nmax_length: 4096\n"
      "bf16: true\nloss_type: nll\nper_device_train_batch_size: 2\ngradient_accumulation_steps: "
      "4\n";
  const auto of_trl = [&](const std::string& text) {
    return folder.estimate("sft.yaml", text, {"--set", "deepspeed=" + file});
  };
  CHECK(numbers_of(of_trl(trl + "gradient_checkpointing: false\n")) == expected);
  const ProgramRun by_default = of_trl(trl);
  CHECK(numbers_of(by_default) == numbers_of(of_trl(trl + "gradient_checkpointing: true\n")));
  CHECK(contains(by_default.err, "took true, TRL's default"));
  const std::string script =
      "sft.py --model_name_or_path meta-llama/Meta-Llama-3-8B --max_length 4096 --bf16 "
      "--loss_type nll "
      "--gradient_checkpointing false --per_device_train_batch_size 2 "
      "--gradient_accumulation_steps 4\n";
  CHECK(numbers_of(folder.estimate(
            "run.sh", "accelerate launch --config_file zero3.yaml " + script)) == expected);
  CHECK(numbers_of(folder.estimate("run.sh", "accelerate launch " + script,
                                   {"--set", "deepspeed=" + file})) == expected);
  const ProgramRun chunked = of_trl(with(trl, "loss_type: nll\n", ""));
  CHECK(contains(chunked.err, "chunked_nll"));
  CHECK(numbers_of(chunked) != numbers_of(by_default));
}

TEST_CASE("what a trainer names and nobody knows is asked for in a line") {
  const TrainerFolder folder;
  const ProgramRun model =
      folder.estimate("sft.yaml", with(kFactory, "Meta-Llama-3-8B-Instruct", "My-Own-9B"));
  check_refused(model, 2);
  CHECK(contains(model.err, "sft.yaml:2: model_name_or_path: found 'meta-llama/My-Own-9B'"));
  CHECK(contains(model.err, "expected --model NAME"));
  CHECK(folder
            .estimate("sft.yaml", with(kFactory, "Meta-Llama-3-8B-Instruct", "My-Own-9B"),
                      {"--model", "llama3-8b"})
            .exit_code < 2);
  const ProgramRun file = folder.estimate("sft.yaml", with(kFactory, "zero3.json", "zero4.json"));
  check_refused(file, 2);
  CHECK(contains(file.err, "deepspeed: found no file 'configs/zero4.json'"));
}

TEST_CASE("a configuration that names itself, or another training, is refused") {
  const TrainerFolder folder;
  const ProgramRun itself =
      folder.estimate("sft.yaml", with(kFactory, "configs/zero3.json", "sft.yaml"));
  check_refused(itself, 2);
  CHECK(contains(itself.err, "sft.yaml: found no configuration of accelerate"));
  const auto accelerate = [&](const std::string& ranks, const std::string& rest) {
    const Words model = {"--model", "llama3-8b", "--sequence-length", "4096"};
    return folder.estimate("zero3.yaml",
                           "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
                           "mixed_precision: bf16\nnum_processes: " +
                               ranks + "\ndeepspeed_config:\n  " + rest + "\n",
                           model);
  };
  check_refused(accelerate("8", "deepspeed_config_file: zero3.yaml"), 2);
  const ProgramRun no_number = accelerate("all", "zero_stage: 3");
  check_refused(no_number, 2);
  CHECK(contains(no_number.err,
                 "num_processes: found \"all\", expected an integer from 1 to 4194304"));
}

TEST_CASE("a model beside the run is read where the run names its folder") {
  const TrainerFolder folder;
  std::filesystem::create_directory(folder.path() + "/llama");
  write_file(folder.path() + "/llama/config.json",
             R"json({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 8192})json");
  const ProgramRun run =
      folder.estimate("sft.yaml", with(kFactory, "meta-llama/Meta-Llama-3-8B-Instruct", "llama"));
  CHECK(numbers_of(run) == numbers_of_options({"--recompute", "full"}));
}

}  // namespace shardplan
