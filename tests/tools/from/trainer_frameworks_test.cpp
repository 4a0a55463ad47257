// Trainings of transformers' Trainer without DeepSpeed, by the commands that start them.
#include <doctest/doctest.h>

#include "tests/tools/from/trainer_folder.h"

namespace shardplan {
namespace {

std::string numbers_of_options(const Words& more) {
  Words words = {"estimate", "--model",        "qwen3-8b",     "--cluster",
                 "1x8-h100", "--framework",    "transformers", "--micro-batch",
                 "1",        "--global-batch", "64",           "--sequence-length",
                 "4096",     "--recompute",    "full"};
  words.insert(words.end(), more.begin(), more.end());
  return numbers_of(run_in_full(words));
}

constexpr const char* kArguments =
    "--model_name_or_path Qwen/Qwen3-8B --dataset_name mine --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 8 --max_length 4096 --bf16 --gradient_checkpointing true "
    "--loss_type nll --output_dir out ";

constexpr const char* kFsdp =
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    "num_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n";

}  // namespace

TEST_CASE("FSDP is that of the options, whoever asks for it") {
  const TrainerFolder folder;
  const std::string expected = numbers_of_options({"--zero", "3", "--set", "weights_dtype=fp32"});
  folder.add("fsdp.json", R"({"fsdp_version": 2, "reshard_after_forward": true})");
  folder.add("acc.yaml", kFsdp);
  const std::string arguments = kArguments;
  for (const std::string& line :
       {"torchrun --nproc_per_node 8 sft.py " + arguments +
            "--fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json\n",
        "torchrun --nproc_per_node 8 sft.py " + arguments +
            "--fsdp full_shard --fsdp_config '{\"version\": 2}'\n",
        "accelerate launch --config_file acc.yaml sft.py " + arguments + "\n",
        "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 sft.py " + arguments +
            "\n",
        "trl sft --accelerate_config fsdp2 --num_processes 8 " + arguments + "\n",
        "uv run trl sft --accelerate_config acc.yaml " + arguments + "\n"}) {
    CAPTURE(line);
    const ProgramRun run = folder.estimate("run.sh", line);
    CHECK(numbers_of(run) == expected);
    CHECK(contains(run.out, "framework    transformers 5.17.0"));
    CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  }
  CHECK(numbers_of(folder.estimate(
            "run.sh", "accelerate launch --config_file acc.yaml sft.py " + arguments + "\n",
            {"--set", "fsdp_config.reshard_after_forward=false"})) ==
        numbers_of_options({"--zero", "2", "--set", "weights_dtype=fp32"}));
}

TEST_CASE("a launcher's words go over its file, and none of them is DistributedDataParallel") {
  const TrainerFolder folder;
  const std::string expected = numbers_of_options({"--zero", "0", "--set", "weights_dtype=fp32"});
  const std::string arguments = kArguments;
  folder.add("ddp.yaml",
             with(with(kFsdp, "FSDP", "MULTI_GPU"),
                  "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n", ""));
  for (const std::string& line :
       {"torchrun --nproc_per_node 8 sft.py " + arguments + "\n",
        "accelerate launch --config_file ddp.yaml sft.py " + arguments + "\n",
        "trl sft --num_processes 8 " + arguments + "\n"}) {
    CAPTURE(line);
    CHECK(numbers_of(folder.estimate("run.sh", line)) == expected);
  }
  const ProgramRun one =
      folder.estimate("run.sh", "CUDA_VISIBLE_DEVICES=3 python sft.py " + arguments + "\n");
  CHECK(contains(one.err, "the run's launcher starts 1 ranks"));
}

TEST_CASE("a script's configuration is the training, with its words over the file's") {
  const TrainerFolder folder;
  folder.add("acc.yaml", kFsdp);
  folder.add("sft.yaml",
             "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: mine\nmax_length: 2_048\n"
             "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nloss_type: nll\n");
  const std::string expected = numbers_of_options({"--zero", "3", "--set", "weights_dtype=fp32"});
  for (const std::string& line :
       {std::string("accelerate launch --config_file acc.yaml recipes/sft.py --config sft.yaml "
                    "--max_length 4096\n"),
        std::string(
            "trl sft --config sft.yaml --accelerate_config acc.yaml --max_length=4096\n")}) {
    CAPTURE(line);
    CHECK(numbers_of(folder.estimate("run.sh", line)) == expected);
  }
}

TEST_CASE("adapters are named before anything is asked for that would not help") {
  const TrainerFolder folder;
  const std::string factory =
      "model_name_or_path: Qwen/Qwen3-4B-Instruct-2507\nstage: sft\nfinetuning_type: lora\n"
      "lora_rank: 8\nlora_target: all\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
      "bf16: true\nuse_reentrant_gc: false\n";
  const ProgramRun run = folder.estimate("sft.yaml", factory);
  CHECK(contains(run.out, "adapters     rank 8 on all linear layers, of fp32\n"));
  CHECK(contains(folder.estimate("sft.yaml", factory, {"--set", "lora_rank=64"}).out,
                 "adapters     rank 64 on all"));
  CHECK(contains(folder.estimate("sft.yaml", factory, {"--lora-targets", "q_proj"}).out,
                 "adapters     rank 8 on q_proj"));
  const ProgramRun packed = folder.estimate(
      "sft.yaml", with(factory, "Qwen/Qwen3-4B-Instruct-2507", "unsloth/Qwen3-4B-bnb-4bit"));
  CHECK(numbers_of(packed) ==
        numbers_of(folder.estimate("sft.yaml", factory + "quantization_bit: 4\n")));
  const ProgramRun dynamic = folder.estimate(
      "sft.yaml",
      with(factory, "Qwen/Qwen3-4B-Instruct-2507", "unsloth/Qwen3-4B-unsloth-bnb-4bit"));
  CHECK(
      contains(dynamic.out, "UNSUPPORTED  model unsloth/Qwen3-4B-unsloth-bnb-4bit: weights that"));
  const ProgramRun unknown = folder.estimate(
      "sft.yaml", with(with(factory, "Qwen/Qwen3-4B-Instruct-2507", "my/own"), "sft", "ppo"));
  CHECK(contains(unknown.out, "UNSUPPORTED  stage ppo"));
  const ProgramRun family =
      folder.estimate("sft.yaml", with(factory, "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3.5-4B"));
  CHECK(contains(family.err, "LLaMA-Factory loads qwen3.5-4b with its tower for pictures"));
  CHECK(contains(family.out, "adapters     rank 8 on all linear layers"));
  const ProgramRun picture = folder.estimate(
      "sft.yaml", with(factory, "Qwen/Qwen3-4B-Instruct-2507", "OpenGVLab/InternVL3-8B"));
  CHECK(contains(picture.out, "UNSUPPORTED  model OpenGVLab/InternVL3-8B: a tower for pictures"));
}

TEST_CASE("ms-swift is one process unless it is told otherwise, and ships configurations") {
  const TrainerFolder folder;
  const std::string arguments =
      "--model Qwen/Qwen3-8B --tuner_type full --max_length 4096 --packing true --attn_impl "
      "flash_attn --gradient_accumulation_steps 8 ";
  CHECK(numbers_of(folder.estimate(
            "run.sh", "NPROC_PER_NODE=8 swift sft --fsdp fsdp2 " + arguments + "\n")) ==
        numbers_of_options({"--zero", "3", "--set", "attention_backend=flash"}));
  const ProgramRun open =
      folder.estimate("run.sh", "uv run swift sft --deepspeed zero3 " + arguments);
  CHECK(contains(open.err, "NPROC_PER_NODE: the number of ranks is not known here"));
  CHECK(contains(open.out, "framework    deepspeed"));
  const ProgramRun divided =
      folder.estimate("run.sh", "CUDA_VISIBLE_DEVICES=0,1 swift sft " + arguments + "\n");
  CHECK(contains(divided.out, "UNSUPPORTED  device_map over GPUs 0,1"));
}

TEST_CASE("open-instruct's fine-tuning is accelerate's, with weights in bf16") {
  const TrainerFolder folder;
  const std::string arguments =
      "open_instruct/finetune.py --model_name_or_path Qwen/Qwen3-8B --tokenizer_name a "
      "--use_slow_tokenizer --dataset_mixer_list a/b 1.0 --max_seq_length 4096 "
      "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --use_flash_attn "
      "--gradient_checkpointing --reduce_loss sum --lr_scheduler_type linear\n";
  const std::string launch = "accelerate launch --mixed_precision bf16 --num_processes 8 ";
  const ProgramRun run = folder.estimate("run.sh", launch + arguments);
  CHECK(numbers_of(run) == numbers_of_options({"--zero", "0", "--set", "attention_backend=flash"}));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  CHECK(contains(
      folder
          .estimate(
              "run.sh",
              launch + "--use_deepspeed --deepspeed_config_file configs/zero3.json " + arguments)
          .out,
      "framework    deepspeed"));
  CHECK(contains(folder
                     .estimate("run.sh", launch + with(arguments, "--reduce_loss",
                                                       "--use_qlora --reduce_loss"))
                     .out,
                 "quantized"));
}

TEST_CASE("programs that train otherwise are refused for what they do") {
  const TrainerFolder folder;
  const auto error = [&](const std::string& line) { return folder.estimate("run.sh", line).err; };
  CHECK(contains(error("trl grpo --model_name_or_path a/b --dataset_name c\n"),
                 "found trl grpo, which trains by reinforcement learning"));
  CHECK(contains(error("python open_instruct/dpo.py --model_name_or_path a/b --dataset_name c\n"),
                 "found dpo.py, which trains on pairs of preferences"));
  CHECK(contains(error("swift infer --model a/b\n"),
                 "found a command of ms-swift that does not train"));
  CHECK(contains(error("deepspeed --module openrlhf.cli.train_sft --pretrain a/b\n"),
                 "found OpenRLHF's train_sft"));
}

TEST_CASE("commands and scripts of TRL and ms-swift say which preferences they train") {
  const TrainerFolder folder;
  const auto run = [&](const std::string& line) { return folder.estimate("run.sh", line); };
  const std::string trl =
      " --model_name_or_path Qwen/Qwen3-0.6B --dataset_name c --max_length 1024 "
      "--per_device_train_batch_size 2 --use_peft --lora_target_modules all-linear\n";
  for (const auto& [program, objective] :
       {std::pair{"trl dpo", "dpo"}, std::pair{"trl kto", "kto"}, std::pair{"trl reward", "reward"},
        std::pair{"python examples/scripts/dpo.py", "dpo"},
        std::pair{"python trl/examples/scripts/orpo.py", "orpo"},
        std::pair{"python examples/scripts/cpo.py", "simpo"},
        std::pair{"python examples/scripts/reward_modeling.py", "reward"}}) {
    const ProgramRun answer = run(program + trl);
    CAPTURE(answer.err);
    CHECK(contains(answer.out, "objective " + std::string(objective) + ":"));
    CHECK(contains(answer.out, " 0 refused, 0 unknown\n"));
  }
  const std::string swift =
      "NPROC_PER_NODE=1 CUDA_VISIBLE_DEVICES=0 swift rlhf --model Qwen/Qwen3-0.6B --dataset c "
      "--tuner_type lora --max_length 1024";
  CHECK(contains(run(swift + "\n").out, "objective dpo:"));  // its default
  for (const auto& [type, objective] :
       {std::pair{"kto", "kto"}, std::pair{"orpo", "orpo"}, std::pair{"simpo", "simpo"},
        std::pair{"cpo", "simpo"}, std::pair{"rm", "reward"}}) {
    const ProgramRun answer = run(swift + " --rlhf_type " + type + "\n");
    CAPTURE(answer.err);
    CHECK(contains(answer.out, "objective " + std::string(objective) + ":"));
  }
  CHECK(contains(run(swift + " --rlhf_type grpo\n").out, "rlhf_type grpo: another training"));
}

TEST_CASE("a supervised run of slime is Megatron-LM's, whose microbatches are filled") {
  const TrainerFolder folder;
  const std::string arguments =
      "python3 train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --swiglu "
      "--num-layers "
      "4 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 8 --vocab-size 1000 "
      "--rollout-batch-size 128 --global-batch-size 128 --use-dynamic-batch-size "
      "--max-tokens-per-gpu 9216 --tensor-model-parallel-size 2 --disable-bias-linear "
      "--normalization RMSNorm --position-embedding-type rope ";
  const ProgramRun run =
      folder.estimate("run.sh", arguments + "--loss-type sft_loss --debug-train-only\n");
  CHECK(contains(run.out, "batch        128 sequences of 9,216 tokens per step"));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  CHECK(
      contains(run.err, "--max-tokens-per-gpu: found 9216, took each microbatch as one sequence"));
  CHECK(contains(folder.estimate("run.sh", arguments + "--loss-type policy_loss\n").err,
                 "which trains by reinforcement learning"));
}

}  // namespace shardplan
