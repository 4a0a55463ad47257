// Loops around a model of transformers other than its Trainer's, counted by hand.
#include <doctest/doctest.h>

#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kLogits = kTokens * 1024;
// Sums and tensors of one number.
constexpr std::int64_t kNumbers = 4096;

// LLaMA-Factory's version 1 over FSDP2: whole models in fp32.
Job version_1(std::int64_t gpus) {
  Job job = small_trainer_job(gpus);
  FrameworkProfile& profile = job.profile;
  profile.loop = TrainerLoop::kFactoryV1;
  profile.weights_dtype = DType::kFp32;
  profile.autocast = false;
  profile.fsdp_upcast = FsdpUpcast::kNone;
  profile.fsdp_ends = FsdpEnds::kEmbeddingApart;
  profile.fsdp_reduce_dtype = DType::kFp32;
  profile.head_loss = HeadLoss::kTwice;
  profile.fused_optimizer = false;
  profile.foreach_optimizer = true;
  return job;
}

Job version_1_with_adapters(std::int64_t gpus) {
  Job job = version_1(gpus);
  job.profile.weights_dtype = DType::kBf16;
  job.profile.fsdp_adapters_alone = true;
  job.adapters = adapters_on_all(8);
  return job;
}

Plan recomputing(std::int64_t zero) {
  Plan plan = trainer_plan(zero);
  plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  return plan;
}

// Logits in bf16, the log-softmax of the model's loss, their copy in fp32 and its log-softmax
// without the last token; of several sequences a copy without the last token of each, and a
// log-softmax of it.
TEST_CASE("a loop that takes the loss again has logits five times") {
  Job job = version_1(2);
  const Plan plan = recomputing(3);
  const auto logits = [&] {
    return most_bytes(job, plan, MomentKind::kLossForward, "head.logits");
  };
  constexpr std::int64_t kOfOne = (2 + 4 + 4) * kLogits + 4 * (kLogits - 1024);
  CHECK(logits() >= kOfOne);
  CHECK(logits() <= kOfOne + kNumbers);
  Plan two = plan;
  two.micro_batch = 2;
  job.global_batch *= 2;
  const std::int64_t shorter = 2 * kLogits - 2 * 1024;
  const std::int64_t of_two = most_bytes(job, two, MomentKind::kLossForward, "head.logits");
  CHECK(of_two >= (2 + 4 + 4) * 2 * kLogits + (4 + 4) * shorter);
  CHECK(of_two <= (2 + 4 + 4) * 2 * kLogits + (4 + 4) * shorter + kNumbers);
}

// Liger writes either gradient over the logits that it is of.
TEST_CASE("Liger's cross entropy leaves a loop that takes it again no log-softmax") {
  Job job = version_1(2);
  job.profile.liger_kernel = LigerKernel::kThrough082;
  const std::int64_t logits =
      most_bytes(job, recomputing(3), MomentKind::kLossForward, "head.logits");
  CHECK(logits >= (2 + 4 + 4) * kLogits);
  CHECK(logits <= (2 + 4 + 4) * kLogits + kNumbers);
}

// The whole gradient of a layer becomes fp32 in the buffer, whose half is the shard's gradient.
TEST_CASE("gradients that are reduced in fp32 are so in their buffer, and need no other") {
  const Job job = version_1(2);
  CHECK(most_bytes(job, recomputing(3), MomentKind::kBackward, "gradients.reduce_buffer") ==
        4 * kSmallLayer);
  CHECK(idle_bytes(job, recomputing(3), "parameters.shards") == 4 * kSmallModel / 2);
}

// At the loss of the second microbatch the first has left its shards of gradients, not whole ones.
// What its own reductions leave stays, as they are summed over one replica, until they are added.
TEST_CASE("a loop without no_sync reduces in every microbatch") {
  const Job once = version_1(2);
  Job twice = once;
  twice.global_batch *= 2;
  const Plan plan = recomputing(3);
  const auto gradients = [&](const Job& job, MomentKind moment) {
    return most_bytes(job, plan, moment, "gradients");
  };
  CHECK(gradients(twice, MomentKind::kLossForward) == 4 * kSmallModel / 2);
  CHECK(gradients(once, MomentKind::kLossForward) == 0);
  CHECK(gradients(twice, MomentKind::kReduction) == 2 * 4 * kSmallModel / 2);
  CHECK(gradients(once, MomentKind::kReduction) == 4 * kSmallModel / 2);
}

// Per layer of rank 8: A and B of q, k, v, o, gate, up and down.
constexpr std::int64_t kAdapters = 8 * (2 * (512 + 512) + 2 * (512 + 256) + 3 * (512 + 1024));

// A layer that runs again leaves its adapters gathered until each has had its backward pass; the
// root, of head and final norm, stays from the loss on.
TEST_CASE("matrices of adapters are groups by themselves") {
  const Job job = version_1_with_adapters(2);
  const Plan plan = recomputing(3);
  CHECK(idle_bytes(job, plan, "parameters.shards") == (2 * kSmallModel + 4 * 2 * kAdapters) / 2);
  CHECK(most_bytes(job, plan, MomentKind::kReplay, "parameters.gathered") ==
        2 * (kSmallLayer + kAdapters + kSmallTable + 512));
  // The largest matrix of 8 * 1,024, in fp32.
  CHECK(most_bytes(job, plan, MomentKind::kBackward, "gradients.reduce_buffer") == 4 * 8 * 1024);
}

TEST_CASE("a model that is loaded whole is whole on every GPU before it is sharded") {
  Job job = version_1(2);
  const Plan plan = recomputing(3);
  CHECK(most_bytes(job, plan, MomentKind::kStartUp, "parameters") == 0);
  job.profile.loads_whole = true;
  CHECK(most_bytes(job, plan, MomentKind::kStartUp, "parameters") == 4 * kSmallModel);
  CHECK(idle_bytes(job, plan, "parameters") == 0);
  CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 2);
}

// An untied embedding is gathered for itself, the rest of the ends with the model.
TEST_CASE("version 1's root has the ends but for an untied embedding") {
  const Job job = version_1(2);
  CHECK(most_bytes(job, recomputing(3), MomentKind::kForward, "parameters.gathered") ==
        2 * (kSmallTable + 512 + kSmallLayer));
}

// 4-bit weights of nf4 that are unpacked to another type than products have cast what they read and
// write.
TEST_CASE("4-bit products in fp16 cast what goes in and comes out") {
  Job job = version_1_with_adapters(1);
  job.quantized.kind = Quantization::kNf4;
  const auto at = [&](DType dtype) {
    job.profile.quant_compute_dtype = dtype;
    return most_bytes(job, recomputing(0), MomentKind::kReplay, "layer.ffn");
  };
  CHECK(at(DType::kFp16) > at(DType::kBf16));
}

// Of a matrix of 512 * 1,024 in fp32: the update, the momentum in bf16 twice, then products: scaled
// and behind the product, and five squares of 512.
TEST_CASE("Moonshot's Muon gathers a sharded matrix, and its AdamW is not fused") {
  Job job = small_trainer_job(1);
  job.profile.weights_dtype = DType::kFp32;
  job.profile.fused_optimizer = false;
  job.optimizer = OptimizerKind::kMuon;
  CHECK(idle_bytes(job, trainer_plan(0), "optimizer.exp_avg") == 4 * kSmallModel);
  CHECK(idle_bytes(job, trainer_plan(0), "optimizer.step") == 0);
  const std::int64_t alone =
      most_bytes(job, trainer_plan(0), MomentKind::kOptimizer, "optimizer.temporaries");
  Job sharded = version_1(2);
  sharded.profile.foreach_optimizer = false;
  sharded.optimizer = OptimizerKind::kMuon;
  CHECK(idle_bytes(sharded, trainer_plan(3), "optimizer.exp_avg") == 4 * kSmallModel / 2);
  // Half the momentum beside all of it; what the step before has left is a half, too, in bf16.
  CHECK(most_bytes(sharded, trainer_plan(3), MomentKind::kOptimizer, "optimizer.temporaries") ==
        alone + 4 * 512 * 1024 / 2 - 2 * 512 * 1024 / 2);
}

// Of a layer of adapters of rank 8: A and B in bf16 of every one, gate and up of 1,024 a token.
TEST_CASE("axolotl's functions keep matrices of adapters and of the FFN gate and up") {
  Job job = small_trainer_job(1);
  job.adapters = adapters_on_all(8);
  job.profile.adapter_kernels = true;
  const auto kept = [&](const char* name) {
    return most_bytes(job, trainer_plan(0), MomentKind::kLossForward, name);
  };
  CHECK(kept("adapter.activations") == 2 * 2 * kAdapters);
  CHECK(kept("layer.ffn") == 2 * 2 * 2 * 1024 * kTokens);
}

TEST_CASE("axolotl's kernel of head norms and rotation keeps less than both") {
  Job job = small_trainer_job(1);
  job.model.family = "qwen3";
  job.model.qk_norm = true;
  const std::int64_t apart = peak_of(job, trainer_plan(0), MomentKind::kLossForward);
  job.profile.fused_norm_rotary = true;
  CHECK(peak_of(job, trainer_plan(0), MomentKind::kLossForward) < apart);
}

// Half a byte an element, an fp32 scale of every 64, and the code of 16 fp32 values.
TEST_CASE("experts that are quantized are packed, and unpacked whole as their layer runs") {
  constexpr std::int64_t kGateUp = 8 * 2 * 512 * 512;
  constexpr std::int64_t kDown = 8 * 512 * 512;
  constexpr std::int64_t kPacked = (kGateUp + kDown) / 2 + 4 * (kGateUp + kDown) / 64 + 2 * 16 * 4;
  Job job = small_trainer_job(1);
  job.model.family = "qwen3_moe";
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 512};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  job.adapters = {.rank = 8, .targets = {true, true, true, true}};
  job.quantized.kind = Quantization::kNf4;
  const Plan plan = recomputing(0);
  const std::int64_t packed = idle_bytes(job, plan, "parameters.quantized");
  const std::int64_t whole = idle_bytes(job, plan, "parameters");
  job.profile.quantizes_experts = true;
  CHECK(idle_bytes(job, plan, "parameters.quantized") == packed + 2 * kPacked);
  CHECK(idle_bytes(job, plan, "parameters") == whole - 2 * 2 * (kGateUp + kDown));
  CHECK(most_bytes(job, plan, MomentKind::kReplay, "weights_dequantized") >= 2 * (kGateUp + kDown));
}

Job packed_experts_job(std::int64_t gpus, Quantization kind) {
  Job job = small_trainer_job(gpus);
  job.model.family = "qwen3_moe";
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 512};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  job.adapters = {.rank = 8, .targets = {true, true, true, true}};
  job.quantized.kind = kind;
  job.profile.quantizes_experts = true;
  return job;
}

// Of both layers: half a byte an element of experts and of q, k, v and o, over two ranks. Scales
// and codes, which modules keep, every rank has whole.
TEST_CASE(
    "FSDP2 shards packed experts as bytes, and gathers a layer as bytes and floats together") {
  constexpr std::int64_t kExperts = 8 * 3 * 512 * 512;
  Job job = packed_experts_job(2, Quantization::kNf4);
  job.profile.float_quant_storage = true;
  job.profile.fsdp_upcast = FsdpUpcast::kNone;
  const Plan plan = recomputing(3);
  const std::int64_t shards = idle_bytes(job, plan, "parameters.shards");
  const std::int64_t scales = idle_bytes(job, plan, "parameters.quantized");
  job.profile.quantizes_experts = false;
  CHECK(idle_bytes(job, plan, "parameters.shards") ==
        shards + 2 * (2 * kExperts - kExperts / 2) / 2);
  CHECK(scales ==
        idle_bytes(job, plan, "parameters.quantized") + 2 * (4 * kExperts / 64 + 2 * 16 * 4));
  CHECK(most_bytes(job, plan, MomentKind::kForward, "parameters.gathered") ==
        most_bytes(packed_experts_job(2, Quantization::kNf4), plan, MomentKind::kForward,
                   "parameters.gathered") +
            (2 * kExperts - kExperts / 2));
}

// A byte an element, also of q, k, v and o, an fp32 scale of every row of all experts; unpacked by
// way of one more.
TEST_CASE("experts in 8 bits are unpacked to fp32, and sharded by expert") {
  constexpr std::int64_t kGateUp = 8 * 2 * 512 * 512;
  constexpr std::int64_t kDown = 8 * 512 * 512;
  const Plan plan = recomputing(0);
  const Job one = packed_experts_job(1, Quantization::kInt8);
  CHECK(most_bytes(one, plan, MomentKind::kReplay, "weights_dequantized") ==
        4 * (kGateUp + 2 * kDown));
  const Job two = packed_experts_job(2, Quantization::kInt8);
  const std::int64_t scales = idle_bytes(two, recomputing(3), "parameters.quantized");
  CHECK(idle_bytes(one, plan, "parameters.quantized") - scales ==
        2 * (kGateUp + kDown + 3 * 512 * 512));
}

}  // namespace
}  // namespace shardplan::transformers
