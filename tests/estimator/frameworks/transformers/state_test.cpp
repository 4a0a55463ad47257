// What a rank of transformers' Trainer holds, counted by hand.
#include "estimator/frameworks/transformers/state.h"

#include <doctest/doctest.h>

#include <string_view>

#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

TEST_CASE("one GPU holds weights, and two moments in their type") {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    Job job = small_trainer_job(1);
    job.profile.weights_dtype = dtype;
    const Plan plan = trainer_plan(0);
    const std::int64_t bytes = bytes_of(dtype) * kSmallModel;
    CHECK(idle_bytes(job, plan, "parameters") == bytes);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == bytes);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == bytes);
    CHECK(idle_bytes(job, plan, "ddp.buckets") == 0);
  }
}

// Per layer: q and v of rank 16, A 16 * 512 and B 512 * 16, and A 16 * 512 and B 256 * 16.
TEST_CASE("adapters are held in fp32 beside frozen weights, and have the only moments") {
  Job job = small_trainer_job(1);
  job.adapters = {.rank = 16, .targets = {true, false, true}};
  const Plan plan = trainer_plan(0);
  const std::int64_t adapters = 2 * 16 * (512 + 512 + 512 + 256);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * adapters);
  CHECK(idle_bytes(job, plan, "parameters") == 2 * kSmallModel);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * adapters);
  CHECK(idle_bytes(job, plan, "optimizer.step") == 2 * 4 * 4);  // a number for each A and B
}

// Of n elements in nf4: n / 2 packed, a byte for each of n / 64 blocks, an fp32 scale for each 256
// of these, their code of 256 fp32 values, an fp32 offset, and the code of 16 fp32 values.
std::int64_t nf4_bytes(std::int64_t elements, bool is_double) {
  const std::int64_t blocks = elements / 64;
  return elements / 2 + 16 * 4 + (is_double ? blocks + blocks / 256 * 4 + 256 * 4 + 4 : 4 * blocks);
}

TEST_CASE("linear weights in nf4 are packed, with scales of blocks that may be quantized as well") {
  Job job = small_trainer_job(1);
  job.adapters = adapters_on_all(8);
  const Plan plan = trainer_plan(0);
  for (const bool is_double : {false, true}) {
    job.quantized = {.kind = Quantization::kNf4, .is_double = is_double};
    const std::int64_t layer = 2 * nf4_bytes(512 * 512, is_double) +
                               2 * nf4_bytes(512 * 256, is_double) +
                               3 * nf4_bytes(512 * 1024, is_double);
    CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * layer);
    CHECK(idle_bytes(job, plan, "parameters") == 2 * (2 * kSmallTable + 512 + 2 * 2 * 512));
  }
}

TEST_CASE("DDP has buckets of all trained parameters, in their type") {
  Job job = small_trainer_job(2);
  job.profile.weights_dtype = DType::kFp32;
  CHECK(idle_bytes(job, trainer_plan(0), "ddp.buckets") == 4 * kSmallModel);
  job.adapters = adapters_on_all(8);
  const std::int64_t layer = 8 * (2 * (512 + 512) + 2 * (512 + 256) + 3 * (512 + 1024));
  CHECK(idle_bytes(job, trainer_plan(0), "ddp.buckets") == 4 * 2 * layer);
}

// At the loss the last group, final norm and head, is whole; without resharding every group is.
TEST_CASE("FSDP2 shards fp32 parameters, and gathers groups in bf16") {
  const Job job = small_trainer_job(2);
  for (const std::int64_t zero : {2, 3}) {
    CAPTURE(zero);
    const Plan plan = trainer_plan(zero);
    CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "parameters.gathered") == 0);
  }
  CHECK(held_bytes(job, trainer_plan(2), Phase::kForward, "parameters.gathered") ==
        2 * kSmallModel);
}

// Behind the first microbatch every gradient is there in bf16, whole, however many ranks there are.
TEST_CASE("under FSDP2 microbatches before the last leave their gradients whole") {
  for (const std::int64_t gpus : {2, 8}) {
    CAPTURE(gpus);
    const Job once = small_trainer_job(gpus);
    Job twice = once;
    twice.global_batch *= 2;
    CHECK(peak_of(twice, trainer_plan(3), MomentKind::kLossForward) -
              peak_of(once, trainer_plan(3), MomentKind::kLossForward) ==
          2 * kSmallModel);
  }
}

// The second step makes new buckets, by when the process group has let the old ones go.
TEST_CASE("DDP has its buckets once, also where it makes them anew") {
  Plan plan = trainer_plan(0);
  plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  const Job job = small_trainer_job(2);
  CHECK(most_bytes(job, plan, MomentKind::kLossForward, "ddp.buckets") == 2 * kSmallModel);
}

TEST_CASE("FSDP2 shards 4-bit weights in bf16, leaves them whole in bytes, and casts no adapters") {
  Job job = small_trainer_job(2);
  job.adapters = adapters_on_all(8);
  job.adapters.dtype = DType::kBf16;
  job.quantized.kind = Quantization::kNf4;
  const std::int64_t layer = 2 * nf4_bytes(512 * 512, false) + 2 * nf4_bytes(512 * 256, false) +
                             3 * nf4_bytes(512 * 1024, false);
  const std::int64_t linear = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024;
  const std::int64_t adapters = 8 * (2 * (512 + 512) + 2 * (512 + 256) + 3 * (512 + 1024));
  const std::int64_t others = 2 * kSmallTable + 512 + 2 * 2 * 512;
  const Plan plan = trainer_plan(3);
  CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * layer);
  CHECK(idle_bytes(job, plan, "parameters.shards") == 2 * (others + 2 * adapters) / 2);
  job.profile.float_quant_storage = true;
  CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * (layer - linear / 2));
  CHECK(idle_bytes(job, plan, "parameters.shards") ==
        (2 * (others + 2 * adapters) + 2 * linear / 2) / 2);
}

// Table and copy are gathered together: V*h in bf16 each; only the copy is trained, in fp32 shards.
TEST_CASE("FSDP2 gathers a table with the copy of it that is trained") {
  Job job = small_trainer_job(2);
  job.adapters = adapters_on_all(8);
  const Plan plan = trainer_plan(3);
  const std::int64_t shards = idle_bytes(job, plan, "parameters.shards");
  const std::int64_t moments = idle_bytes(job, plan, "optimizer.exp_avg");
  job.adapters.trains_head = true;
  CHECK(idle_bytes(job, plan, "parameters.shards") == shards + 4 * kSmallTable / 2);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == moments + 4 * kSmallTable / 2);
}

// Nothing but the loss is different: no logits, the same shards.
TEST_CASE("FSDP2 takes losses that keep no logits") {
  Job job = small_trainer_job(2);
  const Plan plan = trainer_plan(3);
  const std::int64_t shards = idle_bytes(job, plan, "parameters.shards");
  const auto logits = [&] {
    return most_bytes(job, plan, MomentKind::kLossForward, "head.logits");
  };
  const std::int64_t whole = logits();
  for (const HeadLoss loss :
       {HeadLoss::kChunked, HeadLoss::kFusedLinear, HeadLoss::kCutCrossEntropy}) {
    CAPTURE(name_of(loss));
    job.profile.head_loss = loss;
    CHECK(idle_bytes(job, plan, "parameters.shards") == shards);
    CHECK(logits() < whole);
  }
}

// A layer that runs again within the backward pass is gathered for it, and no layer twice; the tail
// has gone.
TEST_CASE("FSDP2 gathers one layer at a time, whichever way layers are recomputed") {
  Job job = small_trainer_job(2);
  Plan plan = trainer_plan(3);
  plan.recompute = {.granularity = RecomputeGranularity::kFull};
  for (const bool is_reentrant : {false, true}) {
    job.profile.reentrant_checkpoint = is_reentrant;
    CHECK(most_bytes(job, plan, MomentKind::kBackward, "parameters.gathered") == 2 * kSmallLayer);
  }
}

// Of a layer each of two norms, attention and FFN keeps what it reads, 64 x 512 bf16 of the stream
// or of a norm; the layer as a whole keeps one of them.
TEST_CASE("parts of layers that are checkpointed keep an input each") {
  Job job = small_trainer_job(2);
  Plan plan = trainer_plan(3);
  plan.recompute = {.granularity = RecomputeGranularity::kFull};
  const auto kept = [&] {
    return most_bytes(job, plan, MomentKind::kLossForward, "layer.residual") +
           most_bytes(job, plan, MomentKind::kLossForward, "layer.norm");
  };
  const std::int64_t whole = kept();
  job.profile.checkpoints_layer_parts = true;
  const auto layers = static_cast<std::int64_t>(job.model.layers.size());
  const std::int64_t tokens = job.sequence_length * plan.micro_batch;
  CHECK(kept() - whole == 3 * layers * tokens * job.model.hidden * 2);
}

// Of a layer: outputs of q and o 512 each, k and v 256, gate and up 1,024, down 512.
TEST_CASE("DoRA trains a magnitude for each output, and makes an identity matrix of the inputs") {
  Job job = small_trainer_job(1);
  job.adapters = adapters_on_all(8);
  const Plan plan = trainer_plan(0);
  const std::int64_t adapters = idle_bytes(job, plan, "adapters");
  job.adapters.decomposes_weights = true;
  const std::int64_t outputs = 2 * 512 + 2 * 256 + 2 * 1024 + 512;
  CHECK(idle_bytes(job, plan, "adapters") == adapters + 2 * 4 * outputs);
  CHECK(held_bytes(job, plan, Phase::kForward, "adapter.activations") > 4 * 1024 * 1024);
}

TEST_CASE("fp16 holds what bf16 does") {
  Job job = small_trainer_job(1);
  job.profile.weights_dtype = DType::kFp32;
  Plan plan = trainer_plan(0);
  const std::int64_t casts = held_bytes(job, plan, Phase::kForward, "weights_cast");
  CHECK(casts >= 2 * 2 * (kSmallLayer - 2 * 512));
  plan.precision = Precision::kFp16;
  CHECK(held_bytes(job, plan, Phase::kForward, "weights_cast") == casts);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel);
}

// 8 heads of 512 * 512 scores in fp32 a layer, and those of one call before softmax.
TEST_CASE("attention of grouped heads in fp32 saves its scores") {
  Job job = small_trainer_job(1);
  job.profile.weights_dtype = DType::kFp32;
  job.profile.autocast = false;
  Plan plan = trainer_plan(0);
  plan.precision = Precision::kFp32;
  constexpr std::int64_t kScores = 4 * 8 * 512 * 512;
  CHECK(held_bytes(job, plan, Phase::kForward, "layer.attention") > 2 * kScores);
  job.model.num_kv_heads = 8;
  CHECK(held_bytes(job, plan, Phase::kForward, "layer.attention") < 2 * kScores);
}

// Of a layer's gather on two ranks: its output and that of the layer before, 2 * P each, and its
// shards in bf16.
TEST_CASE("FSDP2 with offload leaves neither shards nor moments on the GPU, and copies a group") {
  const Job job = small_trainer_job(2);
  Plan plan = trainer_plan(3);
  plan.offload = {.optimizer = 1, .parameters = true};
  for (const char* name :
       {"parameters.shards", "gradients", "optimizer.exp_avg", "optimizer.step"}) {
    CAPTURE(name);
    CHECK(idle_bytes(job, plan, name) == 0);
  }
  CHECK(held_bytes(job, plan, Phase::kOptimizer, "gradients") == 0);
  CHECK(most_bytes(job, plan, MomentKind::kForward, "parameters.gather_buffer") ==
        2 * 2 * kSmallLayer + 2 * kSmallLayer / 2);
}

// The root's parameters, both tables and the final norm, stay from the forward pass to the end of
// the backward pass; gradients stay until the next forward pass.
TEST_CASE("FSDP1 shards flat parameters in fp32 and gathers them in bf16, the root's for good") {
  Job job = small_trainer_job(2);
  job.profile.fsdp_version = 1;
  constexpr std::int64_t kRoot = 2 * kSmallTable + 512;
  for (const std::int64_t zero : {2, 3}) {
    CAPTURE(zero);
    const Plan plan = trainer_plan(zero);
    CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "gradients") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "parameters.gathered") == 0);
  }
  const auto gathered = [&](std::int64_t zero, MomentKind moment) {
    return most_bytes(job, trainer_plan(zero), moment, "parameters.gathered");
  };
  CHECK(gathered(3, MomentKind::kForward) == 2 * (kRoot + kSmallLayer));
  CHECK(gathered(2, MomentKind::kLossForward) == 2 * kSmallModel);
  CHECK(gathered(3, MomentKind::kLossBackward) == 2 * (kRoot + kSmallLayer));
  job.profile.fsdp_prefetch = FsdpPrefetch::kBackwardPre;
  CHECK(gathered(3, MomentKind::kLossBackward) == 2 * kSmallModel);
}

// Parts of matrices are vectors, of which Adafactor keeps every square; of the first rank all are
// of the first half of a flat tensor.
TEST_CASE("FSDP1's first rank has the beginning of every flat tensor") {
  Job job = small_trainer_job(2);
  job.profile.fsdp_version = 1;
  job.optimizer = OptimizerKind::kAdafactor;
  CHECK(idle_bytes(job, trainer_plan(3), "optimizer.exp_avg_sq") == 4 * kSmallModel / 2);
}

// The gradients of one expert's matrices lie in zeros of all experts', beside the sum so far.
TEST_CASE("experts that run one after the other have each gradient whole") {
  Job job = small_trainer_job(1);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 512};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const auto gradients = [&] {
    return most_bytes(job, trainer_plan(0), MomentKind::kLossBackward, "gradients.of_weights");
  };
  const std::int64_t grouped = gradients();
  job.profile.eager_experts = true;
  constexpr std::int64_t kGateAndUp = 8 * 2 * 512 * 512;
  CHECK(gradients() > grouped + 2 * (kGateAndUp - 2 * kSmallTable));
}

// One moment of the layers' matrices; two of tables and norms. The largest step, of gate: the
// update in fp32, the matrix in bf16 before and behind a product, two squares of 512.
TEST_CASE("Muon has one moment of each matrix, and AdamW two of the rest") {
  Job job = small_trainer_job(1);
  job.profile.weights_dtype = DType::kFp32;
  job.optimizer = OptimizerKind::kMuon;
  const Plan plan = trainer_plan(0);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == 4 * (2 * kSmallTable + 5 * 512));
  CHECK(most_bytes(job, plan, MomentKind::kOptimizer, "optimizer.temporaries") ==
        (4 + 2 + 2) * 512 * 1024 + 2 * 2 * 512 * 512);
}

}  // namespace
}  // namespace shardplan::transformers
