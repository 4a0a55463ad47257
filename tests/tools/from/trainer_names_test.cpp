// No key is dropped in silence: one that nobody knows is named, at every level of every format.
#include <doctest/doctest.h>

#include <initializer_list>

#include "tests/tools/from/trainer_folder.h"

namespace shardplan {
namespace {

constexpr const char* kTrl =
    "model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: a\nmax_length: 1024\npacking: true\n"
    "per_device_train_batch_size: 1\nloss_type: nll\n";
constexpr const char* kAccelerate =
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    "num_processes: 8\n";

struct Format {
  const char* what;
  std::string text;
};

// The unknown key stands at the end of the text, which `settings` ends within a section.
void check_named(const TrainerFolder& folder, const std::string& file, const std::string& text,
                 const std::string& name, const Words& more = {}) {
  CAPTURE(file);
  CAPTURE(text);
  const ProgramRun run = folder.estimate(file, text, more);
  CHECK_MESSAGE(contains(run.err, "unknown setting " + name), run.out << run.err);
}

}  // namespace

TEST_CASE("a key that nobody knows is named, at every level of every trainer's file") {
  const TrainerFolder folder;
  const std::initializer_list<Format> formats = {
      {"trl.yaml", kTrl},
      {"factory.yaml",
       "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: full\ncutoff_len: "
       "1024\n"},
      {"axolotl.yml",
       "base_model: Qwen/Qwen3-0.6B\nsequence_len: 1024\nsample_packing: true\nbf16: true\n"},
      {"swift.yaml", "model: Qwen/Qwen3-0.6B\ntuner_type: full\nmax_length: 1024\n"},
      {"version_1.yaml",
       "model: Qwen/Qwen3-0.6B\ntrain_dataset: a\nmodel_class: llm\ncutoff_len: 1024\n"}};
  for (const Format& format : formats) {
    check_named(folder, format.what, format.text + "bogus: 1\n", "bogus 1");
    check_named(folder, format.what, format.text + "bogus:\n  inner: 1\n", "bogus.inner 1");
    check_named(folder, format.what, format.text + "fsdp: full_shard\nfsdp_config:\n  bogus: 1\n",
                "fsdp_config.bogus 1");
    check_named(folder, format.what,
                format.text + "fsdp: full_shard\nfsdp_config:\n  a:\n    b: 1\n",
                "fsdp_config.a.b 1");
    check_named(folder, format.what, format.text + "deepspeed: configs/zero3.json\nbogus: 1\n",
                "bogus 1");
  }
}

TEST_CASE("a key that nobody knows is named, at every level of accelerate's file") {
  const TrainerFolder folder;
  const Words model = {"--model", "qwen3-0.6b", "--sequence-length", "1024"};
  const auto check = [&](const std::string& text, const std::string& name) {
    check_named(folder, "acc.yaml", kAccelerate + text, name, model);
    check_named(folder, "acc.yaml", with(kAccelerate, "FSDP", "DEEPSPEED") + text,
                name.starts_with("fsdp_config") ? "accelerate.fsdp_config.fsdp_bogus 1" : name,
                model);
    folder.add("acc.yaml", kAccelerate + text);
    check_named(folder, "run.sh",
                "accelerate launch --config_file acc.yaml sft.py --model_name_or_path "
                "Qwen/Qwen3-0.6B --max_length 1024 --packing --loss_type nll\n",
                name);
  };
  check("bogus: 1\n", "accelerate.bogus 1");
  check("bogus:\n  inner: 1\n", "accelerate.bogus.inner 1");
  check("fsdp_config:\n  fsdp_bogus: 1\n", "fsdp_config.bogus 1");
  check("deepspeed_config:\n  bogus: 1\n", "accelerate.deepspeed_config.bogus 1");
  check("parallelism_config:\n  bogus: 1\n", "accelerate.parallelism_config.bogus 1");
  check("dynamo_config:\n  bogus: 1\n", "accelerate.dynamo_config.bogus 1");
  check("fp8_config:\n  bogus: 1\n", "accelerate.fp8_config.bogus 1");
  check("mpirun_config:\n  bogus: 1\n", "accelerate.mpirun_config.bogus 1");
  check("ipex_config:\n  bogus: 1\n", "accelerate.ipex_config.bogus 1");
}

TEST_CASE("a key that nobody knows is named, at every level of DeepSpeed's configuration") {
  const TrainerFolder folder;
  const Words model = {"--model", "qwen3-0.6b", "--sequence-length", "1024"};
  for (const char* const section : {"activation_checkpointing",
                                    "aio",
                                    "amp",
                                    "autotuning",
                                    "bf16",
                                    "checkpoint",
                                    "comms_logger",
                                    "csv_monitor",
                                    "data_types",
                                    "eigenvalue",
                                    "elasticity",
                                    "flops_profiler",
                                    "fp16",
                                    "monitor_config",
                                    "optimizer",
                                    "scheduler",
                                    "tensorboard",
                                    "torch_autocast",
                                    "wandb",
                                    "zero_optimization"}) {
    const std::string text = std::string(R"({"train_batch_size": 8, ")") + section;
    check_named(folder, "ds.json", text + R"(": {"bogus": 1}})", section + std::string(".bogus 1"),
                model);
    check_named(folder, "ds.json", text + R"(": {"bogus": {"inner": 1}}})",
                section + std::string(".bogus.inner 1"), model);
  }
  for (const char* const part : {"offload_optimizer", "offload_param"}) {
    check_named(folder, "ds.json",
                std::string(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, ")") +
                    part + R"(": {"device": "cpu", "bogus": 1}}})",
                "zero_optimization." + std::string(part) + ".bogus 1", model);
  }
  for (const char* const part : {"optimizer", "scheduler"}) {
    check_named(
        folder, "ds.json",
        std::string(R"({"train_batch_size": 8, ")") + part + R"(": {"params": {"bogus": 1}}})",
        part + std::string(".params.bogus 1"), model);
  }
}

TEST_CASE("a key that nobody knows is named, in sections of each program's own") {
  const TrainerFolder folder;
  const std::string version_1 =
      "model: Qwen/Qwen3-0.6B\ntrain_dataset: a\nmodel_class: llm\ncutoff_len: 1024\n";
  for (const char* const section : {"dist_config", "init_config", "kernel_config", "optim_config",
                                    "peft_config", "quant_config"}) {
    check_named(folder, "v1.yaml", version_1 + section + ":\n  bogus: 1\n",
                section + std::string(".bogus 1"));
  }
  const std::string axolotl =
      "base_model: Qwen/Qwen3-0.6B\nsequence_len: 1024\nsample_packing: true\nbf16: true\n";
  for (const char* const section :
       {"accelerator_config", "bnb_config_kwargs", "gradient_checkpointing_kwargs", "model_config",
        "rope_scaling", "special_tokens"}) {
    check_named(folder, "a.yml", axolotl + section + ":\n  bogus: 1\n",
                section + std::string(".bogus 1"));
  }
  check_named(folder, "a.yml", axolotl + "deepspeed:\n  zero_optimization: {stage: 2, bogus: 1}\n",
              "zero_optimization.bogus 1");
}

TEST_CASE("an argument that nobody knows is named, behind every command that trains") {
  const TrainerFolder folder;
  const std::string trainer =
      " --model_name_or_path Qwen/Qwen3-0.6B --max_length 1024 --packing true --loss_type nll "
      "--dataset_name a --bogus 1\n";
  for (const char* const command : {"python sft.py", "torchrun --nproc_per_node 8 sft.py",
                                    "accelerate launch sft.py", "deepspeed sft.py", "trl sft"}) {
    check_named(folder, "run.sh", command + trainer, "bogus 1");
  }
  check_named(folder, "run.sh",
              "llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen3-0.6B "
              "--finetuning_type full --bogus 1\n",
              "bogus 1");
  check_named(folder, "run.sh",
              "swift sft --model Qwen/Qwen3-0.6B --tuner_type full --max_length 1024 --bogus 1\n",
              "bogus 1");
  check_named(folder, "run.sh",
              "BOGUS=1 swift sft --model Qwen/Qwen3-0.6B --tuner_type full --max_length 1024\n",
              "BOGUS 1");
  check_named(folder, "run.sh",
              "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 1024 --bogus 1\n",
              "--bogus 1");
  const std::string megatron =
      "model: Qwen/Qwen3-0.6B\ntuner_type: full\nmax_length: 1024\ntensor_model_parallel_size: 1\n";
  check_named(folder, "m.yaml", megatron + "bogus: 1\n", "--bogus 1");
  check_named(folder, "m.yaml", megatron + "ENV:\n  BOGUS: '1'\n", "BOGUS 1");
}

TEST_CASE("a key that nobody knows is named in files that a run names") {
  const TrainerFolder folder;
  folder.add("fsdp.json", R"({"fsdp_version": 2, "bogus": 1, "more": {"inner": 2},
                              "transformer_layer_cls_to_wrap": ["A", "B"]})");
  const std::string run =
      std::string(kTrl) + "fsdp: full_shard auto_wrap\nfsdp_config: fsdp.json\n";
  check_named(folder, "trl.yaml", run, "fsdp_config.bogus 1");
  check_named(folder, "trl.yaml", run, "fsdp_config.more.inner 2");
  folder.add("ds.json", R"({"train_batch_size": "auto", "bogus": 1,
                            "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}},
                            "zero_optimization": {"stage": 2, "bogus": 2}})");
  const std::string sharded = std::string(kTrl) + "deepspeed: ds.json\n";
  check_named(folder, "trl.yaml", sharded, "bogus 1");
  check_named(folder, "trl.yaml", sharded, "zero_optimization.bogus 2");
  check_named(
      folder, "run.sh",
      "torchrun --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen3-0.6B --max_length "
      "1024 --packing --bogus 1 --gradient_checkpointing_kwargs '{\"bogus\": 2}'\n",
      "gradient_checkpointing_kwargs.bogus 2");
}

TEST_CASE(
    "sections of accelerate that it does not use are classified, and parallelism is refused") {
  const TrainerFolder folder;
  const Words model = {"--model", "qwen3-0.6b", "--sequence-length", "1024"};
  const ProgramRun run = folder.estimate(
      "acc.yaml",
      std::string(kAccelerate) +
          "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
          "dynamo_config:\n  dynamo_backend: 'no'\n  dynamo_mode: default\n"
          "fp8_config:\n  backend: TE\ntpu_env: []\ntpu_use_cluster: false\nuse_cpu: false\n"
          "parallelism_config:\n  parallelism_config_tp_size: 1\n",
      model);
  CHECK_MESSAGE(contains(run.out, " 0 refused, 0 unknown\n"), run.out << run.err);
  const auto out = [&](const std::string& text) {
    return folder.estimate("acc.yaml", kAccelerate + text, model).out;
  };
  CHECK(contains(out("parallelism_config:\n  parallelism_config_tp_size: 2\n"),
                 "UNSUPPORTED  parallelism_config's sizes, whose product is 2"));
  CHECK(contains(out("dynamo_config:\n  dynamo_backend: INDUCTOR\n"),
                 "UNSUPPORTED  accelerate.dynamo_config.dynamo_backend INDUCTOR"));
  CHECK(contains(out("megatron_lm_config:\n  megatron_lm_tp_degree: 2\n"),
                 "UNSUPPORTED  accelerate.megatron_lm_config"));
}

}  // namespace shardplan
