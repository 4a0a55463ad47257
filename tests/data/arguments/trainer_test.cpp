// What transformers' Trainer and the programs around it take where a run is silent, and what they
// call the same thing.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/case_tuning.h"

namespace shardplan {
namespace {

using Words = std::vector<std::pair<const char*, const char*>>;

RunReading read(TrainerProject project, const Words& words, const char* cluster = "1x8-h100",
                RunFormat format = RunFormat::kTransformers, const char* model = "llama3.2-1b") {
  const Library library;
  RunSettings settings;
  settings.format = format;
  settings.trainer = project;
  settings.file = "run";
  settings.model = model;
  for (const auto& [name, value] : words) {
    settings.arguments.push_back(
        {.name = name, .values = {value}, .place = "run: " + std::string(name) + ": "});
  }
  return read_run(settings, library.cluster(cluster), library);
}

bool notes(const RunReading& run, std::string_view text) {
  for (const std::string& note : run.notes) {
    if (note.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

bool is_recomputed(const RunReading& run) {
  return run.plan.recompute.granularity == RecomputeGranularity::kFull;
}

const Adapters kAllOfEight = {.rank = 8, .targets = all_targets().on};

}  // namespace

TEST_CASE(
    "a bare Trainer is DistributedDataParallel of eight sequences a rank, in the checkpoint's "
    "type") {
  const RunReading run = read(TrainerProject::kTransformers, {{"max_length", "2048"}});
  CHECK(run.unsupported.empty());
  CHECK(run.framework == "transformers");
  CHECK(run.plan.zero == 0);
  CHECK(run.plan.micro_batch == 8);
  CHECK(run.job.global_batch == 64);
  CHECK(run.job.sequence_length == 2048);
  CHECK_FALSE(is_recomputed(run));
  CHECK(run.job.adapters == Adapters{});
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  CHECK_FALSE(run.job.profile.autocast);
  CHECK(run.plan.precision == Precision::kBf16);
  CHECK(notes(run, "--set weights_dtype=fp32"));
  CHECK(notes(run, "took all sequences to be as long"));
  const RunReading mixed = read(TrainerProject::kTransformers,
                                {{"max_length", "2048"}, {"bf16", "true"}, {"dtype", "float32"}});
  CHECK(mixed.job.profile.weights_dtype == DType::kFp32);
  CHECK(mixed.job.profile.autocast);
  CHECK(mixed.plan.precision == Precision::kBf16);
  const RunReading plain =
      read(TrainerProject::kTransformers, {{"max_length", "2048"}, {"dtype", "float32"}});
  CHECK(plain.plan.precision == Precision::kFp32);
}

TEST_CASE("TRL loads fp32, mixes in bf16, recomputes and takes its loss in chunks") {
  const RunReading run = read(TrainerProject::kTrl, {});
  CHECK(run.job.sequence_length == 1024);
  CHECK(run.plan.micro_batch == 8);
  CHECK(is_recomputed(run));
  CHECK_FALSE(run.job.profile.reentrant_checkpoint);
  CHECK(run.job.profile.weights_dtype == DType::kFp32);
  CHECK(run.job.profile.autocast);
  CHECK(run.job.profile.head_loss == HeadLoss::kChunked);
  CHECK(notes(run, "max_length: found nothing, took 1024, TRL's default"));
  CHECK(notes(run, "loss_type: found nothing, took chunked_nll, TRL's default"));
  CHECK(notes(run, "gradient_checkpointing: found nothing, took true, TRL's default"));
  const RunReading stock = read(TrainerProject::kTrl, {{"loss_type", "nll"}, {"packing", "true"}});
  CHECK(stock.job.profile.head_loss == HeadLoss::kStock);
  CHECK(stock.job.profile.packed_sequences);
  const RunReading flash = read(TrainerProject::kTrl, {{"attn_implementation", "flash_attention_2"},
                                                       {"packing", "true"},
                                                       {"use_liger_kernel", "true"}});
  CHECK_FALSE(flash.job.profile.packed_sequences);
  CHECK(flash.job.profile.head_loss == HeadLoss::kFusedLinear);
  CHECK(flash.job.profile.liger_kernel == LigerKernel::kThrough082);
}

TEST_CASE("TRL's adapters are of rank 16 on queries and values, in bf16 beside quantized weights") {
  const RunReading run = read(TrainerProject::kTrl, {{"use_peft", "true"}});
  Adapters expected = {.rank = 16, .targets = {true, false, true}, .dropout = 0.05};
  CHECK(run.job.adapters == expected);
  const RunReading quantized =
      read(TrainerProject::kTrl,
           {{"use_peft", "true"}, {"load_in_4bit", "true"}, {"lora_target_modules", "all-linear"}});
  expected.targets.fill(true);
  expected.expert_targets = ExpertTargets::kAllLinear;
  expected.dtype = DType::kBf16;
  CHECK(quantized.job.adapters == expected);
  CHECK(quantized.job.quantized == QuantizedWeights{.kind = Quantization::kNf4});
  CHECK(read(TrainerProject::kTrl, {{"use_peft", "true"}, {"load_in_8bit", "true"}})
            .job.quantized.kind == Quantization::kInt8);
}

TEST_CASE("LLaMA-Factory trains adapters on all linear layers unless told otherwise") {
  const RunReading run = read(TrainerProject::kFactory, {{"bf16", "true"}});
  CHECK(run.job.adapters == kAllOfEight);
  CHECK(run.job.sequence_length == 2048);
  CHECK(is_recomputed(run));
  CHECK(run.job.profile.reentrant_checkpoint);
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  const RunReading full =
      read(TrainerProject::kFactory, {{"finetuning_type", "full"},
                                      {"use_reentrant_gc", "false"},
                                      {"disable_gradient_checkpointing", "true"},
                                      {"bf16", "true"}});
  CHECK(full.job.adapters == Adapters{});
  CHECK_FALSE(is_recomputed(full));
  CHECK(full.job.profile.weights_dtype == DType::kFp32);  // what is trained becomes fp32
  const RunReading pure =
      read(TrainerProject::kFactory, {{"finetuning_type", "full"}, {"pure_bf16", "true"}});
  CHECK(pure.job.profile.weights_dtype == DType::kBf16);
  CHECK_FALSE(pure.job.profile.autocast);
  const RunReading quantized =
      read(TrainerProject::kFactory, {{"quantization_bit", "4"},
                                      {"lora_target", "q_proj,v_proj"},
                                      {"additional_target", "embed_tokens,lm_head"}});
  CHECK(quantized.job.quantized == QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
  CHECK(quantized.job.adapters.is_on(LinearLayer::kValue));
  CHECK_FALSE(quantized.job.adapters.is_on(LinearLayer::kUp));
  CHECK(quantized.job.adapters.trains_table);
  CHECK(quantized.job.adapters.trains_head);
  CHECK_FALSE(notes(read(TrainerProject::kFactory, {{"stage", "pt"}, {"cutoff_len", "2048"}}),
                    "took all sequences"));
}

TEST_CASE("axolotl has fp32 ends beside bf16 layers, but for adapters, FSDP and FlashAttention") {
  const RunReading run = read(TrainerProject::kAxolotl, {{"bf16", "auto"}});
  CHECK(run.job.sequence_length == 512);
  CHECK(run.plan.micro_batch == 1);
  CHECK_FALSE(is_recomputed(run));
  CHECK(run.job.profile.weights_dtype == DType::kBf16);
  CHECK(run.job.profile.wide_ends);
  for (const auto& [name, value] : Words{{"adapter", "lora"},
                                         {"attn_implementation", "flash_attention_2"},
                                         {"fsdp_version", "2"},
                                         {"cut_cross_entropy", "true"}}) {
    const std::string captured(name);
    CAPTURE(captured);
    CHECK_FALSE(read(TrainerProject::kAxolotl, {{name, value}}).job.profile.wide_ends);
  }
  const RunReading steps =
      read(TrainerProject::kAxolotl, {{"batch_size", "8"}, {"micro_batch_size", "2"}});
  CHECK(steps.job.global_batch == 8 * 8);
  const RunReading lora = read(TrainerProject::kAxolotl, {{"adapter", "qlora"},
                                                          {"lora_r", "32"},
                                                          {"lora_target_linear", "true"},
                                                          {"gradient_checkpointing", "true"}});
  CHECK(lora.job.adapters.rank == 32);
  CHECK(lora.job.adapters.is_on(LinearLayer::kDown));
  CHECK(lora.job.quantized == QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
  CHECK(lora.job.profile.reentrant_checkpoint);
  CHECK_FALSE(read(TrainerProject::kAxolotl, {{"bfloat16", "true"}}).job.profile.autocast);
}

TEST_CASE("ms-swift trains adapters with dropout, and fills sixteen sequences a step") {
  const RunReading run = read(TrainerProject::kSwift, {{"max_length", "2048"}});
  Adapters expected = kAllOfEight;
  expected.dropout = 0.05;
  CHECK(run.job.adapters == expected);
  CHECK(run.plan.micro_batch == 1);
  CHECK(run.job.global_batch == 16);
  CHECK(is_recomputed(run));
  CHECK_FALSE(run.job.profile.reentrant_checkpoint);
  const RunReading typed = read(TrainerProject::kSwift, {{"max_length", "2048"},
                                                         {"train_type", "lora"},
                                                         {"lora_dtype", "bfloat16"},
                                                         {"target_modules", "q_proj, o_proj"},
                                                         {"quant_bits", "8"}});
  CHECK(typed.job.adapters.dtype == DType::kBf16);
  CHECK(typed.job.adapters.is_on(LinearLayer::kOutput));
  CHECK(typed.job.quantized.kind == Quantization::kInt8);
}

TEST_CASE("FSDP is stage 3, or 2 where weights stay gathered, of the version that each says") {
  const RunReading run =
      read(TrainerProject::kTransformers, {{"max_length", "64"}, {"fsdp", "full_shard auto_wrap"}});
  CHECK(run.unsupported.empty());
  CHECK(run.plan.zero == 3);
  CHECK(run.job.profile.fsdp_version == 2);
  CHECK(run.job.profile.fsdp_upcast == FsdpUpcast::kTrained);
  CHECK(run.job.profile.fsdp_ends == FsdpEnds::kTailWithHead);
  CHECK(read(TrainerProject::kTransformers, {{"fsdp", "shard_grad_op"}}).plan.zero == 2);
  CHECK(read(TrainerProject::kTransformers,
             {{"fsdp", "full_shard"}, {"fsdp_config.reshard_after_forward", "false"}})
            .plan.zero == 2);
  CHECK(is_recomputed(
      read(TrainerProject::kTransformers,
           {{"fsdp", "full_shard"}, {"fsdp_config.activation_checkpointing", "true"}})));
  const RunReading launched = read(TrainerProject::kTrl, {{"accelerate.distributed_type", "FSDP"}});
  CHECK(launched.plan.zero == 3);
  CHECK(launched.job.profile.fsdp_version == 1);
  const RunReading axolotl = read(TrainerProject::kAxolotl, {{"fsdp_config.version", "2"}});
  CHECK(axolotl.plan.zero == 3);
  CHECK(axolotl.job.profile.fsdp_ends == FsdpEnds::kRoot);
  const auto parts = [](TrainerProject project, const char* version) {
    return read(project, {{"fsdp", "full_shard"},
                          {"fsdp_config.activation_checkpointing", "true"},
                          {"fsdp_config.version", version}})
        .job.profile.checkpoints_layer_parts;
  };
  CHECK(parts(TrainerProject::kFactory, "2"));
  CHECK_FALSE(parts(TrainerProject::kFactory, "1"));
  CHECK_FALSE(parts(TrainerProject::kAxolotl, "2"));  // layers around them
  CHECK_FALSE(parts(TrainerProject::kTrl, "2"));
  const RunReading factory = read(TrainerProject::kFactory, {{"fsdp", "full_shard"}});
  CHECK(factory.job.profile.fsdp_upcast == FsdpUpcast::kAll);
  CHECK_FALSE(factory.job.profile.reentrant_checkpoint);
  CHECK(read(TrainerProject::kTransformers, {{"fsdp_config.version", "2"}}).plan.zero == 0);
}

TEST_CASE("optimizers are those that are described, by the Trainer's names") {
  const auto of = [](const char* name) {
    return read(TrainerProject::kTransformers, {{"max_length", "64"}, {"optim", name}});
  };
  CHECK(of("adamw_torch_fused").job.optimizer == OptimizerKind::kAdamW);
  CHECK(of("adamw_bnb_8bit").job.optimizer == OptimizerKind::kAdamW8bit);
  CHECK(of("paged_adamw_8bit").job.optimizer == OptimizerKind::kPagedAdamW8bit);
  CHECK(of("paged_adamw_32bit").job.optimizer == OptimizerKind::kPagedAdamW);
  CHECK(of("adamw_torch_4bit").job.optimizer == OptimizerKind::kTorchaoAdamW4bit);
  CHECK(of("adafactor").job.optimizer == OptimizerKind::kAdafactor);
  CHECK(of("sgd").job.optimizer == OptimizerKind::kSgd);
  const RunReading lists = of("adamw_torch");
  CHECK_FALSE(lists.job.profile.fused_optimizer);
  CHECK(lists.job.profile.foreach_optimizer);
  CHECK(of("lion_32bit").job.optimizer == OptimizerKind::kLion);
  CHECK(of("paged_lion_8bit").job.optimizer == OptimizerKind::kPagedLion8bit);
  CHECK(of("lomo").unsupported.starts_with("unsupported: optim lomo: "));
}

TEST_CASE("LLaMA-Factory's version 1 shards whole models in fp32, and adapters one by one") {
  const auto of = [](const Words& words) {
    RunReading run = read(TrainerProject::kFactoryV1, words);
    CHECK(run.unsupported == "");
    CHECK(run.job.profile.loop == TrainerLoop::kFactoryV1);
    CHECK(run.job.profile.head_loss == HeadLoss::kTwice);
    CHECK(run.job.profile.foreach_optimizer);
    return run;
  };
  const RunReading whole = of({{"dist_config.name", "fsdp2"}, {"micro_batch_size", "2"}});
  CHECK(whole.plan.zero == 3);
  CHECK(whole.plan.precision == Precision::kBf16);
  CHECK(whole.job.global_batch == 16);
  CHECK(is_recomputed(whole));
  const FrameworkProfile& profile = whole.job.profile;
  CHECK(profile.weights_dtype == DType::kFp32);
  CHECK(profile.fsdp_ends == FsdpEnds::kEmbeddingApart);
  CHECK(profile.fsdp_reduce_dtype == DType::kFp32);
  CHECK(profile.loads_whole);
  CHECK_FALSE(profile.reentrant_checkpoint);
  const RunReading adapted = of({{"dist_config.name", "fsdp2"},
                                 {"init_config.name", "init_on_rank0"},
                                 {"global_batch_size", "32"},
                                 {"peft_config.name", "lora"},
                                 {"peft_config.r", "4"},
                                 {"quant_config.name", "bnb"}});
  CHECK(adapted.job.adapters.rank == 4);
  CHECK(adapted.job.adapters.targets == kAllOfEight.targets);
  CHECK(adapted.job.adapters.dropout == 0.05);
  CHECK(adapted.job.global_batch == 32);
  CHECK(adapted.job.profile.weights_dtype == DType::kBf16);
  CHECK(adapted.job.profile.fsdp_adapters_alone);
  CHECK_FALSE(adapted.job.profile.loads_whole);
  CHECK(adapted.job.quantized.is_double);
  CHECK(adapted.job.profile.quant_compute_dtype == DType::kFp16);
  CHECK(notes(adapted, "FSDP2 casts them to bf16"));
  // Without dist_config: DistributedDataParallel, in the weights' own type.
  const RunReading alone = of({});
  CHECK(alone.plan.zero == 0);
  CHECK(alone.plan.precision == Precision::kFp32);
  CHECK_FALSE(alone.job.profile.autocast);
  const RunReading row = of({{"dist_config.name", "fsdp2"},
                             {"micro_batch_size", "4"},
                             {"cutoff_len", "512"},
                             {"flash_attn", "flash_attention_2"},
                             {"batching_strategy", "padding_free"}});
  CHECK(row.job.sequence_length == 2048);
  CHECK(row.plan.micro_batch == 1);
}

TEST_CASE("sequences over ranks are ms-swift's and version 1's, as far as heads go") {
  const RunReading swift =
      read(TrainerProject::kSwift, {{"max_length", "4096"}, {"sequence_parallel_size", "4"}});
  CHECK(swift.unsupported == "");
  CHECK(swift.plan.cp == 4);
  CHECK(swift.plan.cp_method == CpMethod::kA2a);
  CHECK(swift.plan.dp == 2);
  CHECK(swift.job.profile.head_loss == HeadLoss::kPerToken);
  // Llama 3.2 1B has 8 heads of keys and values.
  const RunReading ring =
      read(TrainerProject::kSwift, {{"max_length", "4096"}, {"sequence_parallel_size", "16"}},
           "2x8-h100");
  CHECK(ring.unsupported.find("8 heads of keys and values: ring attention") != std::string::npos);
  const RunReading other = read(TrainerProject::kTransformers,
                                {{"max_length", "4096"}, {"sequence_parallel_size", "2"}});
  CHECK(other.unsupported.find("sequence_parallel_size 2") != std::string::npos);
  const RunReading copies =
      read(TrainerProject::kAxolotl,
           {{"sequence_len", "4096"}, {"fsdp_version", "2"}, {"dp_replicate_size", "2"}});
  CHECK(copies.plan.dp_replicate == 2);
}

TEST_CASE("Moonshot's Muon, and axolotl's kernels of adapters and experts, are by their names") {
  for (const auto& [project, name, value] :
       {std::tuple{TrainerProject::kFactory, "use_muon", "true"},
        std::tuple{TrainerProject::kSwift, "optimizer", "muon"}}) {
    const RunReading run = read(project, {{name, value}, {"max_length", "64"}});
    CHECK(run.unsupported == "");
    CHECK(run.job.optimizer == OptimizerKind::kMuon);
    CHECK_FALSE(run.job.profile.fused_optimizer);
  }
  const auto axolotl = [](const Words& words) { return read(TrainerProject::kAxolotl, words); };
  CHECK(axolotl({{"optimizer", "muon"}}).unsupported.find("optimizer muon") != std::string::npos);
  CHECK(axolotl({{"adapter", "lora"}}).job.profile.adapter_kernels);
  CHECK_FALSE(
      axolotl({{"adapter", "lora"}, {"lora_mlp_kernel", "false"}}).job.profile.adapter_kernels);
  const RunReading sharded = axolotl({{"adapter", "lora"}, {"fsdp_version", "2"}});
  CHECK_FALSE(sharded.job.profile.adapter_kernels);
  CHECK(notes(sharded, "took peft's layers"));
  const RunReading half = axolotl({{"float16", "true"}, {"bf16", "false"}});
  CHECK(half.plan.precision == Precision::kFp16);
  CHECK_FALSE(half.job.profile.autocast);
}

TEST_CASE("axolotl's class of Kimi Linear cannot do without fla") {
  const auto of = [](TrainerProject project, const char* model) {
    return read(project, {{"max_length", "64"}}, "1x8-h200", RunFormat::kTransformers, model);
  };
  const RunReading kimi = of(TrainerProject::kAxolotl, "kimi-linear-48b-a3b");
  CHECK(kimi.job.profile.mixer_kernels);
  CHECK(kimi.job.profile.convolution_kernels);
  CHECK(notes(kimi, "axolotl's own class of Kimi Linear"));
  CHECK_FALSE(of(TrainerProject::kTrl, "kimi-linear-48b-a3b").job.profile.mixer_kernels);
  CHECK_FALSE(of(TrainerProject::kAxolotl, "qwen3-next-80b-a3b").job.profile.mixer_kernels);
}

TEST_CASE("what is not described is refused by name, whatever divides the model") {
  for (const auto& [name, value] : Words{{"stage", "dpo"},
                                         {"rl", "kto"},
                                         {"finetuning_type", "bitfit"},
                                         {"use_galore", "true"},
                                         {"fp8", "true"},
                                         {"torch_compile", "true"},
                                         {"context_parallel_size", "2"},
                                         {"gradient_checkpointing", "offload"},
                                         {"attn_implementation", "eager"},
                                         {"plugins", "axolotl.integrations.kd.KDPlugin"},
                                         {"tensor_parallel_size", "2"}}) {
    const std::string captured(name);
    CAPTURE(captured);
    for (const RunFormat format : {RunFormat::kTransformers, RunFormat::kDeepspeed}) {
      const TrainerProject project = name == std::string_view("finetuning_type")
                                         ? TrainerProject::kFactory
                                         : TrainerProject::kTransformers;
      const RunReading run =
          read(project, {{name, value}, {"max_length", "64"}}, "1x8-h100", format);
      CHECK(run.unsupported.starts_with("unsupported: "));
      CHECK(run.unsupported.find(std::string_view(name).substr(0, 12)) != std::string::npos);
      CHECK(run.unsupported.find(value) != std::string::npos);
    }
  }
  const auto of = [](const Words& words) {
    return read(TrainerProject::kTransformers, words).unsupported;
  };
  CHECK(of({{"fsdp", "hybrid_shard"}}).starts_with("unsupported: FSDP's hybrid_shard"));
  CHECK(of({{"fsdp", "full_shard"}, {"fsdp_config.auto_wrap_policy", "NO_WRAP"}})
            .starts_with("unsupported: fsdp_config.auto_wrap_policy NO_WRAP"));
  CHECK(of({{"accelerate.distributed_type", "MEGATRON_LM"}})
            .starts_with("unsupported: distributed_type MEGATRON_LM"));
  CHECK(of({{"use_peft", "true"}, {"lora_target_modules", "qkv_proj"}})
            .starts_with("unsupported: lora_target_modules qkv_proj"));
  const auto says = [](TrainerProject project, const char* name, const char* value,
                       std::string_view meaning) {
    const RunReading run = read(project, {{name, value}, {"max_length", "64"}});
    CAPTURE(run.unsupported);
    CHECK(run.unsupported.starts_with("unsupported: " + std::string(name)));
    CHECK(run.unsupported.find(meaning) != std::string::npos);
  };
  using enum TrainerProject;
  says(kAxolotl, "activation_offloading", "hidden_states", "bring inputs of layers back");
  says(kTransformers, "activation_offloading", "true", "described for TRL and axolotl");
  CHECK(of({{"accelerate.parallelism_config.parallelism_config_tp_size", "2"}})
            .find("whose product is 2 of 8 ranks") != std::string::npos);
}

TEST_CASE("accelerate's mesh divides layers, and sequences by its ring") {
  const std::string launcher = "accelerate.parallelism_config.parallelism_config_";
  const std::string tp = launcher + "tp_size";
  const std::string cp = launcher + "cp_size";
  const std::string shards = launcher + "dp_shard_size";
  const std::string strategy = launcher + "cp_comm_strategy";
  const RunReading layers =
      read(TrainerProject::kTransformers, {{"max_length", "4096"}, {tp.c_str(), "8"}});
  CHECK(layers.unsupported == "");
  CHECK(layers.plan.tp == 8);
  CHECK(layers.plan.dp == 1);
  CHECK(layers.job.profile.tensor_parallel_dtensors);
  const Words sharded = {{"max_length", "4096"},
                         {"accelerate.distributed_type", "FSDP"},
                         {"fsdp_config.version", "2"},
                         {cp.c_str(), "4"},
                         {shards.c_str(), "2"}};
  const RunReading ring = read(TrainerProject::kTransformers, sharded);
  CHECK(ring.unsupported == "");
  CHECK(ring.plan.cp == 4);
  CHECK(ring.plan.cp_method == CpMethod::kAllGather);
  CHECK(ring.plan.dp == 2);
  Words hops = sharded;
  hops.push_back({strategy.c_str(), "alltoall"});
  CHECK(read(TrainerProject::kTransformers, hops).plan.cp_method == CpMethod::kRing);
  Words both = sharded;
  both.push_back({"accelerate.parallelism_config.parallelism_config_sp_size", "2"});
  CHECK(read(TrainerProject::kTransformers, both).unsupported.find("one of both") !=
        std::string::npos);
  const RunReading axolotl =
      read(TrainerProject::kAxolotl,
           {{"sequence_len", "4096"}, {"fsdp_version", "2"}, {"tensor_parallel_size", "2"}});
  CHECK(axolotl.unsupported == "");
  CHECK(axolotl.plan.tp == 2);
  CHECK(axolotl.plan.dp == 4);
  CHECK_FALSE(axolotl.job.profile.tensor_parallel_dtensors);
}

TEST_CASE("LLaMA-Factory's fp8 is bf16 under transformers 5, but by Transformer Engine") {
  const auto of = [](const char* backend) {
    return read(
        TrainerProject::kFactory,
        {{"cutoff_len", "64"}, {"bf16", "true"}, {"fp8", "true"}, {"fp8_backend", backend}});
  };
  CHECK(of("torchao").unsupported == "");
  CHECK(notes(of("torchao"), "fp8: found true, took products in the type that bf16"));
  CHECK(of("torchao").plan.precision == Precision::kBf16);
  CHECK(of("te").unsupported.starts_with("unsupported: fp8 true: products in fp8"));
}

TEST_CASE("axolotl's ring stands behind FlashAttention, of packed sequences alone") {
  const Words ring = {{"sequence_len", "4096"},       {"fsdp_version", "2"},
                      {"context_parallel_size", "4"}, {"micro_batch_size", "1"},
                      {"sample_packing", "true"},     {"attn_implementation", "flash_attention_2"}};
  const auto of = [](Words words, const char* name, const char* value) {
    std::erase_if(words, [&](const auto& each) { return std::string_view(each.first) == name; });
    words.push_back({name, value});
    return read(TrainerProject::kAxolotl, words);
  };
  const RunReading run = read(TrainerProject::kAxolotl, ring);
  CHECK(run.unsupported == "");
  CHECK(run.plan.cp == 4);
  CHECK(run.plan.cp_method == CpMethod::kAllGather);
  CHECK(run.job.profile.attention_backend == AttentionBackend::kFlash);
  CHECK(run.plan.dp == 2);
  CHECK(of(ring, "sample_packing", "false").unsupported.find("batch_ring") != std::string::npos);
  CHECK(of(ring, "attn_implementation", "sdpa").unsupported.find("without FlashAttention") !=
        std::string::npos);
  CHECK(of(ring, "heads_k_stride", "2").unsupported.find("one head of keys") != std::string::npos);
}

TEST_CASE("axolotl deals experts to ranks by its plugin") {
  const Words dealt = {{"sequence_len", "4096"},
                       {"expert_parallel_size", "8"},
                       {"plugins", "axolotl.integrations.expert_parallel.ExpertParallelPlugin"}};
  const RunReading run =
      read(TrainerProject::kAxolotl, dealt, "1x8-h100", RunFormat::kTransformers, "qwen3-30b-a3b");
  CHECK(run.unsupported == "");
  CHECK(run.plan.ep == 8);
  CHECK(run.job.profile.moe_dispatcher == MoeDispatcher::kDeepEp);
  Words sharded = dealt;
  sharded[1].second = "2";
  sharded.push_back({"dp_shard_size", "4"});
  sharded.push_back({"fsdp_version", "2"});
  const RunReading both = read(TrainerProject::kAxolotl, sharded, "1x8-h100",
                               RunFormat::kTransformers, "qwen3-30b-a3b");
  CHECK(both.plan.dp_replicate == 1);
  CHECK(both.plan.ep == 2);
}

TEST_CASE("axolotl copies what its shards leave of the ranks") {
  const auto of = [](const char* shards, const char* copies) {
    return read(TrainerProject::kAxolotl, {{"fsdp_version", "2"},
                                           {"sequence_len", "4096"},
                                           {"dp_shard_size", shards},
                                           {"dp_replicate_size", copies}});
  };
  CHECK(of("4", "1").plan.dp_replicate == 2);
  CHECK(of("4", "2").plan.dp_replicate == 2);
  CHECK(of("8", "1").plan.dp_replicate == 1);
  CHECK(of("1", "4").plan.dp_replicate == 4);
  CHECK(of("4", "4").unsupported.find("dp_shard_size 4 and dp_replicate_size 4 over 8") !=
        std::string::npos);
  CHECK(of("3", "1").unsupported.find("--num-gpus 3") != std::string::npos);
}

TEST_CASE("saved tensors on the host are TRL's, axolotl's or Unsloth's") {
  const RunReading trl = read(TrainerProject::kTrl, {{"activation_offloading", "true"}});
  CHECK(trl.unsupported == "");
  CHECK(trl.plan.offload.activations);
  CHECK(is_recomputed(trl));
  CHECK(trl.job.profile.activation_offload == ActivationOffload::kStreams);
  CHECK(trl.job.profile.offload_spares_weights);
  for (const auto& [word, kind] :
       {std::pair{std::pair{"activation_offloading", "true"}, ActivationOffload::kStreams},
        std::pair{std::pair{"activation_offloading", "legacy"}, ActivationOffload::kOneStream},
        std::pair{std::pair{"gradient_checkpointing", "offload"}, ActivationOffload::kStreams}}) {
    const char* const value = word.second;
    const RunReading run =
        read(TrainerProject::kAxolotl, {{"gradient_checkpointing", "true"}, {word.first, value}});
    CAPTURE(value);
    CHECK(run.unsupported == "");
    CHECK(run.plan.offload.activations);
    CHECK(is_recomputed(run));
    CHECK(run.job.profile.activation_offload == kind);
    CHECK_FALSE(run.job.profile.reentrant_checkpoint);
  }
  const RunReading adapted =
      read(TrainerProject::kAxolotl, {{"gradient_checkpointing", "offload"}, {"adapter", "lora"}});
  CHECK_FALSE(adapted.job.profile.offload_spares_weights);
  CHECK(adapted.job.profile.reentrant_checkpoint);
  const RunReading unsloth = read(TrainerProject::kFactory, {{"use_unsloth_gc", "true"}});
  CHECK(unsloth.unsupported == "");
  CHECK(unsloth.job.profile.activation_offload == ActivationOffload::kLayerInputs);
  CHECK_FALSE(read(TrainerProject::kTrl, {}).plan.offload.activations);
}

TEST_CASE("axolotl's tiles are of 32,768 tokens where nobody says how many") {
  const auto tiles = [](const Words& words) {
    const RunReading run = read(TrainerProject::kAxolotl, words);
    CHECK(run.unsupported == "");
    return run.job.profile.ffn_tiles;
  };
  CHECK(tiles({{"tiled_mlp", "true"}, {"sequence_len", "100000"}}) == 4);
  CHECK(tiles({{"tiled_mlp", "true"}, {"tiled_mlp_num_shards", "16"}}) == 16);
  CHECK(tiles({{"tiled_mlp", "false"}, {"tiled_mlp_num_shards", "16"}}) == 0);
}

TEST_CASE("what a framework can do with adapters, types and host memory is its rules' to say") {
  const RunReading adapters = read(TrainerProject::kFactory, {{"zero_optimization.stage", "2"}},
                                   "1x8-h100", RunFormat::kDeepspeed);
  CHECK(adapters.unsupported.empty());
  CHECK(adapters.job.adapters == kAllOfEight);
  const RunReading eight =
      read(TrainerProject::kTransformers,
           {{"max_length", "2048"}, {"optim", "adamw_bnb_8bit"}, {"zero_optimization.stage", "2"}},
           "1x8-h100", RunFormat::kDeepspeed);
  CHECK(eight.unsupported.empty());
  CHECK(eight.job.optimizer == OptimizerKind::kAdamW8bit);
  CHECK(read(TrainerProject::kTransformers,
             {{"max_length", "2048"}, {"optim", "adamw_bnb_8bit"}, {"optimizer.type", "AdamW"}},
             "1x8-h100", RunFormat::kDeepspeed)
            .job.optimizer == OptimizerKind::kAdamW);
  const RunReading offloaded = read(
      TrainerProject::kAxolotl, {{"fsdp_version", "2"}, {"fsdp_config.offload_params", "true"}});
  CHECK(offloaded.unsupported.empty());
  CHECK(offloaded.plan.offload.parameters);
  CHECK(offloaded.plan.offload.optimizer == 1);
  const RunReading half =
      read(TrainerProject::kTransformers, {{"max_length", "2048"}, {"fp16", "true"}});
  CHECK(half.unsupported.empty());
  CHECK(half.plan.precision == Precision::kFp16);
}

TEST_CASE("a checkpoint that bitsandbytes has quantized is of nf4, whatever else is said") {
  const QuantizedWeights expected = {.kind = Quantization::kNf4, .is_double = true};
  CHECK(read(TrainerProject::kTrl,
             {{"use_peft", "true"}, {"model_name_or_path", "unsloth/llama-3-8b-bnb-4bit"}})
            .job.quantized == expected);
  CHECK(read(TrainerProject::kAxolotl,
             {{"adapter", "lora"}, {"base_model", "unsloth/llama-3-8b-bnb-4bit"}})
            .job.quantized == expected);
}

TEST_CASE("experts run by grouped products unless a file says otherwise") {
  for (const char* const name : {"experts_implementation", "experts_impl"}) {
    CAPTURE(name);
    CHECK(read(TrainerProject::kAxolotl, {{name, "grouped_mm"}}).unsupported.empty());
    CHECK(read(TrainerProject::kAxolotl, {{name, "batched_mm"}}).unsupported.empty());  // of none
  }
}

TEST_CASE("names of an FFN stand for experts as well, lists of linear layers do not") {
  const auto of = [](TrainerProject project, const Words& words) {
    return read(project, words).job.adapters.expert_targets;
  };
  using enum TrainerProject;
  CHECK(of(kFactory, {{"lora_target", "q_proj,v_proj"}}) == ExpertTargets::kNone);
  CHECK(of(kFactory, {{"lora_target", "q_proj,down_proj"}}) == ExpertTargets::kFfnNames);
  CHECK(of(kFactory, {{"lora_target", "all"}}) == ExpertTargets::kNone);
  CHECK(of(kSwift, {{"target_modules", "all-linear"}}) == ExpertTargets::kNone);
  CHECK(of(kAxolotl, {{"adapter", "lora"}, {"lora_target_linear", "true"}}) ==
        ExpertTargets::kNone);
  CHECK(of(kTrl, {{"use_peft", "true"}, {"lora_target_modules", "all-linear"}}) ==
        ExpertTargets::kAllLinear);
}

TEST_CASE("ms-swift's samples are bounded by its model's positions") {
  const RunReading run = read(TrainerProject::kSwift, {{"tuner_type", "full"}});
  CHECK(run.job.sequence_length == 131072);
  CHECK(notes(run, "took 131072, the positions of llama3.2-1b, which bound a sample"));
}

TEST_CASE("a launcher's fp8 is refused") {
  CHECK(read(TrainerProject::kTransformers,
             {{"max_length", "2048"}, {"accelerate.mixed_precision", "fp8"}})
            .unsupported.find("accelerate.mixed_precision fp8") != std::string::npos);
}

TEST_CASE("targets are fitted to the linear layers of the run's model") {
  const auto of = [](const char* model, const char* targets) {
    return read(TrainerProject::kAxolotl,
                {{"adapter", "lora"}, {"lora_target_modules", targets}, {"sequence_len", "64"}},
                "1x1-h100", RunFormat::kTransformers, model);
  };
  const RunReading mixers = of("falcon-h1-0.5b", "[q_proj, in_proj, gate_proj]");
  CHECK(mixers.unsupported.empty());
  CHECK(mixers.job.adapters.is_on(LinearLayer::kMixerInput));
  CHECK_FALSE(mixers.job.adapters.is_on(LinearLayer::kMixerOutput));
  const RunReading latent = of("glm-4.7-flash", "[q_proj, o_proj]");
  CHECK_FALSE(latent.job.adapters.is_on(LinearLayer::kQuery));
  CHECK(notes(latent, "q_proj fits no linear layer of glm-4.7-flash"));
  CHECK(of("glm-4.7-flash", "[k_proj]").unsupported.find("self_attn.q_a_proj") !=
        std::string::npos);
  CHECK(of("llama3.2-1b", R"(model\.layers\.[0-7]\..*_proj)").unsupported.find("16 layers") !=
        std::string::npos);
}

TEST_CASE("axolotl spares outputs of Falcon-H1's state spaces, and not its head") {
  const auto quantized = [](const char* model, const char* adapter) {
    return read(TrainerProject::kAxolotl, {{"adapter", adapter}, {"load_in_4bit", "true"}},
                "1x1-h100", RunFormat::kTransformers, model)
        .job.quantized;
  };
  const QuantizedWeights falcon = quantized("falcon-h1-0.5b", "qlora");
  CHECK_FALSE(falcon.is_on(LinearLayer::kMixerOutput));
  CHECK(falcon.is_on(LinearLayer::kMixerInput));
  CHECK(falcon.takes_head);
  CHECK_FALSE(quantized("llama3.2-1b", "qlora").takes_head);
}

}  // namespace shardplan
