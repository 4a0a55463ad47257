// Trainings of Megatron-SWIFT: attributes of Megatron-LM's arguments around a published model.
#include <doctest/doctest.h>

#include "tests/tools/from/trainer_folder.h"

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

constexpr const char* kSft =
    "NPROC_PER_NODE=8 \\\nCUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\\nmegatron sft \\\n"
    "  --model Qwen/Qwen3-30B-A3B-Base \\\n  --dataset 'some/text' \\\n"
    "  --pipeline_model_parallel_size 2 \\\n  --expert_model_parallel_size 4 \\\n"
    "  --moe_permute_fusion true \\\n  --moe_grouped_gemm true \\\n  --micro_batch_size 1 \\\n"
    "  --global_batch_size 16 \\\n  --packing true \\\n  --recompute_granularity full \\\n"
    "  --recompute_method uniform \\\n  --recompute_num_layers 1 \\\n"
    "  --cross_entropy_loss_fusion true \\\n  --max_length 8192 \\\n"
    "  --sequence_parallel true \\\n  --attention_backend flash\n";

ProgramRun estimate(const std::string& text, const Words& more = {}) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/sft.sh";
  write_file(file, text);
  Words words = {"estimate", "--from", file, "--cluster", "1x8-h100"};
  words.insert(words.end(), more.begin(), more.end());
  return run_in_full(words);
}

std::string memory_of(const ProgramRun& run) {
  const std::size_t begin = run.out.find("\nMemory of one GPU");
  REQUIRE_MESSAGE(begin != std::string::npos, run.out << run.err);
  return run.out.substr(begin, run.out.find("\n\n", begin) - begin);
}

}  // namespace

TEST_CASE("megatron sft is Megatron-LM with ms-swift's defaults around a published model") {
  const ProgramRun run = estimate(kSft);
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  const ProgramRun options = run_in_full({"estimate",
                                          "--model",
                                          "qwen3-30b-a3b",
                                          "--cluster",
                                          "1x8-h100",
                                          "--framework",
                                          "megatron",
                                          "--sequence-length",
                                          "8192",
                                          "--global-batch",
                                          "16",
                                          "--micro-batch",
                                          "1",
                                          "--pp",
                                          "2",
                                          "--ep",
                                          "4",
                                          "--etp",
                                          "1",
                                          "--zero",
                                          "1",
                                          "--recompute",
                                          "full",
                                          "--set",
                                          "cross_entropy=native_fused",
                                          "--set",
                                          "attention_backend=flash",
                                          "--set",
                                          "moe_dispatcher=alltoall",
                                          "--set",
                                          "moe_grouped_gemm=true",
                                          "--set",
                                          "moe_permute_fusion=true",
                                          "--set",
                                          "moe_router_dtype=fp32"});
  CHECK(memory_of(run) == memory_of(options));
}

TEST_CASE("an overlap of shared experts has streams where a model has any, and is nothing else") {
  const std::string overlap = with(kSft, "--packing true", "--moe_shared_expert_overlap true");
  CHECK(memory_of(estimate(overlap)) == memory_of(estimate(kSft)));
  const auto shared = [](const std::string& text) {
    return estimate(with(text, "Qwen/Qwen3-30B-A3B-Base", "moonshotai/Moonlight-16B-A3B"),
                    {"--set", "pipeline-model-parallel-size=1", "--explain"})
        .out;
  };
  CHECK(contains(shared(overlap), "shared_experts_streams"));
  CHECK_FALSE(contains(shared(kSft), "shared_experts_streams"));
}

TEST_CASE("what megatron sft does not say is as ms-swift has it") {
  // Selective recomputation, batches of 16, the distributed optimizer in bf16.
  const ProgramRun run = estimate(
      "NPROC_PER_NODE=4 megatron pt --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 4 "
      "--max_length 4096 --sequence_parallel true\n");
  CHECK(contains(run.out, "recompute selective/core_attn"));
  CHECK(contains(run.out, "precision bf16"));
  CHECK(contains(run.out, "zero 1"));
  CHECK(contains(run.out, "batch        16 sequences of 4,096 tokens per step"));
  CHECK(contains(run.err, "the run's launcher starts 4 ranks"));
  const ProgramRun none = estimate(
      "NPROC_PER_NODE=4 megatron pt --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 4 "
      "--max_length 4096 --recompute_granularity none --use_distributed_optimizer false\n");
  CHECK(contains(none.out, "recompute none"));
  CHECK(contains(none.out, "zero 0"));
}

// ms-swift's rank is 8 and its dropout 0.05; behind Float16Module adapters are bf16.
TEST_CASE("megatron sft with adapters is Megatron-LM with options of adapters") {
  const std::string lora = with(kSft, "--packing true", "--packing true --tuner_type lora");
  const ProgramRun run = estimate(lora);
  CHECK(contains(run.out, "adapters     rank 8 on all-linear, dropout 0.05, of bf16"));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  const ProgramRun options =
      estimate(kSft, {"--lora-rank", "8", "--lora-dropout", "0.05", "--lora-dtype", "bf16"});
  CHECK(memory_of(run) == memory_of(options));
  const ProgramRun some = estimate(with(
      lora, "--tuner_type lora",
      "--tuner_type lora --lora_rank 32 --lora_dropout 0 --target_modules linear_qkv linear_proj "
      "--modules_to_save word_embeddings output_layer"));
  CHECK(contains(some.out,
                 "adapters     rank 32 on q_proj,k_proj,v_proj,o_proj, embedding "
                 "trained, head trained, of bf16"));
  CHECK(memory_of(run) != memory_of(some));
}

TEST_CASE("other adapters of megatron sft are refused by name") {
  const auto said = [](const std::string& words) {
    return estimate(with(kSft, "--packing true", words)).out;
  };
  CHECK(contains(said("--tuner_type lora_llm"), "UNSUPPORTED  --tuner-type lora_llm"));
  CHECK(contains(said("--tuner_type lora --target_modules all-router"),
                 "UNSUPPORTED  --target-modules all-router"));
  CHECK(contains(said("--tuner_type lora --modules_to_save router"),
                 "UNSUPPORTED  --modules-to-save router"));
  CHECK(contains(said("--tuner_type lora --lora_bias all"), "UNSUPPORTED  --lora-bias all"));
  CHECK(contains(said("--adapters out/checkpoint-1"), "UNSUPPORTED  --adapters"));
  const std::string latent = with(kSft, "Qwen/Qwen3-30B-A3B-Base", "moonshotai/Moonlight-16B-A3B");
  CHECK(contains(estimate(with(latent, "--packing true",
                               "--packing true --tuner_type lora --target_modules linear_qkv"))
                     .out,
                 "UNSUPPORTED  --target-modules linear_qkv: latent attention has none"));
}

TEST_CASE("a capacity that pads no expert cuts nothing off even loads") {
  const ProgramRun run =
      estimate(with(kSft, "--packing true", "--packing true --moe_expert_capacity_factor 2"));
  CHECK(memory_of(run) == memory_of(estimate(kSft)));
  CHECK(contains(run.out + run.err, "loads are taken as even"));
}

TEST_CASE("preferences of ms-swift and models without sizes are refused by name") {
  CHECK(contains(estimate(with(kSft, "--packing true", "--tuner_type full")).out, "plan "));
  const ProgramRun rlhf = estimate(with(kSft, "megatron sft", "megatron rlhf"));
  check_refused(rlhf, 2);
  CHECK(contains(rlhf.err, "found megatron rlhf, which trains by preferences"));
  const ProgramRun model = estimate(with(kSft, "Qwen3-30B-A3B-Base", "Unheard-3B"));
  check_refused(model, 2);
  CHECK(contains(model.err, "found 'Qwen/Unheard-3B', whose sizes are not known here"));
}

TEST_CASE("swift sft is a Trainer under DeepSpeed that recomputes, in bf16") {
  const std::string sft =
      "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full "
      "--max_length 4096 --gradient_accumulation_steps 2 --attn_impl flash_attn ";
  const ProgramRun run = estimate(sft + "--deepspeed zero2\n");
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  const ProgramRun options = run_in_full({"estimate",
                                          "--model",
                                          "qwen2.5-7b",
                                          "--cluster",
                                          "1x8-h100",
                                          "--framework",
                                          "deepspeed",
                                          "--sequence-length",
                                          "4096",
                                          "--global-batch",
                                          "16",
                                          "--micro-batch",
                                          "1",
                                          "--zero",
                                          "2",
                                          "--recompute",
                                          "full",
                                          "--set",
                                          "overlap_comm=off",
                                          "--set",
                                          "reduce_bucket_elements=200000000"});
  CHECK(memory_of(run) == memory_of(options));
  CHECK(
      contains(estimate(sft + "--deepspeed zero3 --torch_dtype float16\n").out, "precision fp16"));
  const ProgramRun offloaded = estimate(sft + "--deepspeed zero3_offload\n");
  const ProgramRun resident = estimate(sft + "--deepspeed zero3\n");
  CHECK(memory_of(offloaded) != memory_of(resident));
  CHECK(memory_of(offloaded) ==
        memory_of(estimate(sft + "--deepspeed zero3\n",
                           {"--set", "offload_optimizer=1", "--set", "offload_parameters=on"})));
  CHECK(contains(estimate(sft + "\n").out, "transformers 5.17.0"));
}

TEST_CASE("the positions of its model bound the samples of ms-swift that say no length") {
  const std::string sft = "CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen3-8B --dataset a\n";
  const ProgramRun run = estimate(sft);
  CHECK(contains(run.err,
                 "max_length: found nothing, took 40960, the positions of qwen3-8b, which bound a "
                 "sample; --sequence-length N of the longest says otherwise"));
  CHECK(contains(run.out, "sequences of 40,960 tokens"));
  CHECK(contains(estimate(sft, {"--sequence-length", "2048"}).out, "sequences of 2,048 tokens"));
}

TEST_CASE("a file of ms-swift is its command, of either trainer") {
  const TrainerFolder folder;
  const std::string file =
      "model: Qwen/Qwen3-8B\ntuner_type: full\ndataset: ['a#500', b]\nmax_length: 4096\n"
      "attn_impl: flash_attn\ngradient_accumulation_steps: 2\nENV: {OMP_NUM_THREADS: '8'}\n";
  const std::string words =
      "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --tuner_type full --dataset a --max_length "
      "4096 --attn_impl flash_attn --gradient_accumulation_steps 2 ";
  CHECK(numbers_of(folder.estimate("sft.yaml", file + "deepspeed: zero2\n")) ==
        numbers_of(folder.estimate("run.sh", words + "--deepspeed zero2\n")));
  const std::string megatron =
      "model: Qwen/Qwen2.5-7B\ntuner_type: full\nmax_length: 4096\ntensor_model_parallel_size: 4\n"
      "sequence_parallel: true\npacking: true\nglobal_batch_size: 16\n"
      "ENV:\n  PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'\n";
  const ProgramRun run = folder.estimate("megatron.yaml", megatron);
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  folder.add("m.yaml", megatron);
  const std::string started =
      "export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'\nNPROC_PER_NODE=8 megatron sft ";
  CHECK(numbers_of(folder.estimate("run.sh", started + "m.yaml\n")) == numbers_of(run));
  CHECK(numbers_of(folder.estimate(
            "run.sh", started +
                          "--model Qwen/Qwen2.5-7B --tuner_type full --max_length 4096 "
                          "--tensor_model_parallel_size 4 --sequence_parallel true --packing true "
                          "--global_batch_size 16\n")) == numbers_of(run));
}

// swift/arguments/base_args/base_args.py: max_length is the model's positions.
TEST_CASE("a run of Megatron-SWIFT that says no length has the model's positions") {
  const ProgramRun run = estimate(with(kSft, "  --max_length 8192 \\\n", ""));
  CHECK(contains(run.err, "--max-length: found nothing, took"));
  CHECK(contains(run.err, "the positions of qwen3-30b-a3b"));
}

TEST_CASE("a run on Ascend's NPUs is that of the cluster's GPUs, and says so") {
  const ProgramRun run = estimate(
      "ASCEND_RT_VISIBLE_DEVICES=0,1 HCCL_OP_BASE_FFTS_MODE_ENABLE=TRUE " + std::string(kSft));
  CHECK(contains(run.err, "found Ascend's NPUs, took H100-SXM-80GB in their place"));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
}

TEST_CASE("two products in front of a delta net are read, with adapters on both") {
  const std::string run_of_delta =
      "NPROC_PER_NODE=2 \\\nmegatron sft --model Qwen/Qwen3.5-4B --dataset a --tuner_type lora "
      "--lora_rank 16 --tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 1 "
      "--global_batch_size 2 --recompute_granularity full --recompute_method uniform "
      "--recompute_num_layers 1 --max_length 4096 ";
  const ProgramRun two =
      estimate(run_of_delta + "--linear_decoupled_in_proj true\n", {"--details"});
  CHECK(contains(two.out, "decoupled_in_proj: the weight of the second norm"));
  CHECK(contains(two.out, " 0 refused, 0 unknown\n"));
  const ProgramRun one = estimate(run_of_delta + "--target_modules in_proj_ba\n");
  CHECK(contains(one.out, "in_proj_ba: both are described"));
  const ProgramRun named =
      estimate(run_of_delta + "--linear_decoupled_in_proj true --target_modules in_proj\n");
  CHECK(contains(named.out, "there are in_proj_qkvz and in_proj_ba"));
}

TEST_CASE("models that are not described are named for Megatron as well, but for fp8 checkpoints") {
  CHECK(contains(estimate(with(kSft, "Qwen/Qwen3-30B-A3B-Base", "OpenGVLab/InternVL3-8B")).out,
                 "UNSUPPORTED  model OpenGVLab/InternVL3-8B: a tower for pictures"));
  CHECK(contains(estimate(with(kSft, "Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen3.5-35B-A3B")).err,
                 "Megatron-SWIFT loads qwen3.5-35b-a3b with its tower for pictures"));
  CHECK(memory_of(estimate(with(kSft, "Qwen3-30B-A3B-Base", "Qwen3-30B-A3B-FP8"))) ==
        memory_of(estimate(kSft)));
}

}  // namespace shardplan
