// Plans that transformers' Trainer refuses, or that are not modelled.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

using namespace shardplan;

namespace {

Job trainer_job() {
  Job job = small_trainer_job(8);
  job.global_batch = 64;
  return job;
}

void put_adapters_on_experts(Job& job) {
  job.adapters.rank = 8;
  job.adapters.targets.fill(true);
  job.adapters.expert_targets = ExpertTargets::kFfnNames;
  job.model.family = "olmoe";
  job.model.moe = {.num_experts = 4, .topk = 2, .expert_ffn = 256};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
}

}  // namespace

TEST_CASE("transformers refuses by name what is not modelled") {
  check_refused(
      trainer_job(),
      {{"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 1; }, {"zero 1", "0, 2, 3"}},
       {"unsupported: precision",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp8; },
        {"fp8", "bf16, fp16, fp32"}},
       {"unsupported: tp",
        [](Job& job, Plan& plan) {
          job.model.family = "phi3";
          plan.tp = 8;
        },
        {"tp 8", "phi3", "not Llama's"}},
       {"unsupported: tp",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          plan.tp = 8;
        },
        {"tp 8 with adapters"}},
       {"unsupported: tp",
        [](Job& job, Plan& plan) {
          job.model.tied_embeddings = true;
          plan.tp = 8;
        },
        {"tied_embeddings"}},
       {"unsupported: sequence_parallel",
        [](Job&, Plan& plan) { plan.sequence_parallel = true; },
        {"true"}},
       {"unsupported: cp_method",
        [](Job&, Plan& plan) {
          plan.cp = 2;
          plan.cp_method = CpMethod::kAllGather;
        },
        {"all_gather with zero 0", "FSDP2"}},
       {"unsupported: cp_method",
        [](Job& job, Plan& plan) {
          plan = trainer_plan(3);
          plan.cp = 2;
          plan.cp_method = CpMethod::kRing;
          job.model.layers.front().attention_window = 64;
        },
        {"ring with layers of a window"}},
       {"unsupported: offload.activations",
        [](Job& job, Plan& plan) {
          plan.offload.activations = true;
          job.profile.activation_offload = ActivationOffload::kLayerInputs;
        },
        {"layer_inputs without recompute full"}},
       {"unsupported: ffn_tiles",
        [](Job& job, Plan&) { job.profile.ffn_tiles = 4; },
        {"4 on several GPUs", "one GPU"}},
       {"unsupported: optimizer",
        [](Job& job, Plan&) { job.optimizer = OptimizerKind::kDistMuon; },
        {"dist_muon", "adamw"}},
       {"unsupported: muon",
        [](Job& job, Plan& plan) {
          job.optimizer = OptimizerKind::kMuon;
          plan.zero = 3;
        },
        {"muon with zero 3", "zero 0"}},
       {"unsupported: model.family",
        [](Job& job, Plan&) { job.model.family = "gemma3n_text"; },
        {"gemma3n_text"}},
       {"unsupported: model.head_dim",
        [](Job& job, Plan&) {
          job.model.head_dim = 320;
          job.profile.attention_backend = AttentionBackend::kFlash;
        },
        {"320 with attention_backend flash", "256"}},
       {"unsupported: model.layers",
        [](Job& job, Plan&) { job.model.layers[1].key_values = KeyValueSource::kEarlierLayer; },
        {"keys of earlier layers", "gemma4_text"}},
       {"unsupported: adapter_kernels",
        [](Job& job, Plan&) {
          job.model.family = "gemma4_text";
          job.profile.adapter_kernels = true;
        },
        {"adapter_kernels", "gemma4_text"}},
       {"unsupported: adapters.dora",
        [](Job& job, Plan&) {
          job.adapters = kDefaultAdapters;
          job.adapters.decomposes_weights = true;
          job.quantized.kind = Quantization::kInt8;
        },
        {"dora true on int8"}},
       {"unsupported: adapters.trained_copies",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          job.adapters.trains_head = true;
          job.profile.fsdp_version = 1;
          plan.zero = 3;
        },
        {"true with fsdp_version 1"}},
       {"unsupported: adapters_of_eager_experts",
        [](Job& job, Plan&) {
          put_adapters_on_experts(job);
          job.profile.eager_experts = true;
        },
        {"eager_experts", "o_proj alone"}}},
      trainer_plan(0));
}

TEST_CASE("transformers refuses what its libraries refuse") {
  check_refused(
      trainer_job(),
      {{"adapters_have_a_rank", [](Job& job, Plan&) { job.adapters.rank = -1; }, {"-1", "1"}},
       {"adapters_have_targets",
        [](Job& job, Plan&) { job.adapters.rank = 8; },
        {"no linear layer", "q_proj", "down_proj"}},
       {"adapters_on_whole_modules",
        [](Job& job, Plan&) {
          job.adapters = kDefaultAdapters;
          job.model.family = "phi3";
        },
        {"q_proj, k_proj and v_proj", "qkv_proj"}},
       {"adapters_on_whole_modules",
        [](Job& job, Plan&) {
          job.adapters = {.rank = 8, .targets = {false, false, false, true, true}};
          job.model.family = "glm4";
        },
        {"gate_proj and up_proj", "gate_up_proj"}},
       {"adapters_on_whole_modules",
        [](Job& job, Plan&) {
          job.adapters = kDefaultAdapters;
          job.model.attention = AttentionKind::kMla;
        },
        {"k_proj and v_proj", "latent"}},
       {"adapters_of_experts_are_plain",
        [](Job& job, Plan&) {
          put_adapters_on_experts(job);
          job.adapters.dropout = 0.05;
        },
        {"dropout", "experts"}},
       {"quantized_weights_need_adapters",
        [](Job& job, Plan&) { job.quantized.kind = Quantization::kInt8; },
        {"int8", "adapters"}},
       {"fp16_trains_wider_weights",
        [](Job& job, Plan& plan) {
          job.profile.weights_dtype = DType::kFp16;
          plan.precision = Precision::kFp16;
        },
        {"weights_dtype fp16", "fp32"}},
       {"fp16_trains_wider_weights",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          job.adapters.dtype = DType::kFp16;
          plan.precision = Precision::kFp16;
        },
        {"adapters.dtype fp16"}},
       {"precision_matches_weights",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp32; },
        {"weights_dtype bf16", "precision bf16"}},
       {"precision_matches_weights",
        [](Job& job, Plan& plan) {
          job.profile.weights_dtype = DType::kFp32;
          plan.precision = Precision::kFp32;
          plan.zero = 3;
        },
        {"zero 3", "zero 0"}},
       {"unsupported: offload.optimizer",
        [](Job&, Plan& plan) { plan.offload.optimizer = 0.5; },
        {"0.5", "0, 1"}},
       {"unsupported: offload.parameters",
        [](Job&, Plan& plan) { plan.offload.optimizer = 1; },
        {"false with offload.optimizer 1", "both"}},
       {"offload_needs_shards",
        [](Job&, Plan& plan) { plan.offload = {.optimizer = 1, .parameters = true}; },
        {"zero 0", "zero 2 or 3"}},
       {"optimizer_takes_shards",
        [](Job& job, Plan& plan) {
          job.optimizer = OptimizerKind::kAdamW8bit;
          plan.zero = 3;
        },
        {"adamw_8bit with zero 3", "torchao_adamw_8bit", "zero 0"}},
       {"shards_are_of_floats",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          job.quantized.kind = Quantization::kInt8;
          plan.zero = 3;
        },
        {"int8 with zero 3", "nf4 or fp4"}},
       {"shards_are_of_floats",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          job.quantized.kind = Quantization::kNf4;
          job.profile.fsdp_ends = FsdpEnds::kRoot;
          plan.zero = 2;
        },
        {"nf4 with zero 2", "float_quant_storage true"}},
       {"shards_are_of_floats",
        [](Job& job, Plan& plan) {
          job.adapters = kDefaultAdapters;
          job.quantized.kind = Quantization::kNf4;
          job.profile.fsdp_version = 1;
          plan.zero = 3;
        },
        {"nf4 with zero 3", "float_quant_storage true"}},
       {"unsupported: quantizes_experts",
        [](Job& job, Plan& plan) {
          put_adapters_on_experts(job);
          job.adapters.expert_targets = ExpertTargets::kNone;
          job.quantized.kind = Quantization::kNf4;
          job.profile.quantizes_experts = true;
          job.profile.fsdp_version = 1;
          plan.zero = 3;
        },
        {"true with fsdp_version 1", "fsdp_version 2"}},
       {"flat_parameters_have_one_type",
        [](Job& job, Plan& plan) {
          job.profile.wide_ends = true;
          job.profile.fsdp_version = 1;
          plan.zero = 3;
        },
        {"wide_ends", "fsdp_version 2"}},
       {"tp_beside_data_parallelism",
        [](Job&, Plan& plan) { plan.tp = 2; },
        {"tp 2 with dp 4", "no replicas", "tp 8"}},
       {"tp_beside_data_parallelism",
        [](Job&, Plan& plan) {
          plan = trainer_plan(3);
          plan.tp = 2;
        },
        {"tp 2 with zero 3", "ReplicateParallel", "tensor_parallel_dtensors false"}},
       {"tp_beside_data_parallelism",
        [](Job& job, Plan& plan) {
          plan = trainer_plan(3);
          plan.tp = 2;
          job.profile.tensor_parallel_dtensors = false;
          job.profile.fsdp_version = 1;
        },
        {"fsdp_version 1", "FSDP2"}},
       {"tp_beside_data_parallelism",
        [](Job&, Plan& plan) {
          plan.tp = 4;
          plan.cp = 2;
          plan.cp_method = CpMethod::kA2a;
        },
        {"tp 4 with cp 2 by a2a", "cp 1"}},
       {"vocab_divisible_by_tp",
        [](Job& job, Plan& plan) {
          job.model.vocab = 1001;
          plan.tp = 4;
        },
        {"1001", "4"}},
       {"optimizer_takes_parts_of_weights",
        [](Job& job, Plan& plan) {
          job.optimizer = OptimizerKind::kSgd;
          plan.tp = 4;
        },
        {"sgd with tp 4", "adamw"}},
       {"sequence_divisible_by_2_cp",
        [](Job& job, Plan& plan) {
          plan = trainer_plan(3);
          plan.cp = 8;
          plan.cp_method = CpMethod::kRing;
          job.sequence_length = 520;
        },
        {"520"}},
       {"zero_needs_ranks",
        [](Job& job, Plan& plan) {
          plan = trainer_plan(3);
          plan.tp = 4;
          job.profile.tensor_parallel_dtensors = false;
          job.cluster.gpus_per_node = 4;
        },
        {"zero 3", "of each tp group"}},
       {"zero_needs_ranks",
        [](Job& job, Plan& plan) {
          job.cluster.gpus_per_node = 1;
          plan.zero = 3;
        },
        {"zero 3", "one GPU", "zero 0"}}},
      trainer_plan(0));
}

TEST_CASE("other frameworks train plain weights, and but for Megatron's all of them") {
  for (const auto& row : kMemoryModels) {
    if (row.value == MemoryModel::kTransformers || row.value == MemoryModel::kDeepspeed) {
      continue;
    }
    CAPTURE(row.name);
    Job job = dense_job(row.value);
    const auto is_refused = [&](std::string_view rule) {
      const auto rules = framework_of(job.profile).rules();
      const auto found = std::ranges::find(rules, rule, &ValidityRule::name);
      return found != rules.end() && found->broken(job, {});
    };
    CHECK_FALSE(is_refused("unsupported: trained"));
    CHECK_FALSE(is_refused("unsupported: quantization"));
    job.adapters = kDefaultAdapters;
    job.quantized.kind = Quantization::kNf4;
    CHECK(is_refused("unsupported: trained") != (row.value == MemoryModel::kMegatron));
    CHECK(is_refused("unsupported: quantization"));
  }
}
