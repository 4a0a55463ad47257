// What Gemma 4 saves of a forward pass, counted by hand, and by hooks on saved tensors of the same
// small models under transformers 5.17 on the CPU.
#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/eager/attention.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/transformers/rules.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 1024;

// A layer with a window of 256 and the model's heads, 8 of 64 with 4 of keys; and one without whose
// heads are `width` wide, with 2 of keys, which are values as well.
Job gemma4(std::int64_t width) {
  Job job = small_trainer_job(1);
  job.model.family = "gemma4_text";
  job.model.norms_per_layer = 4;
  job.model.qk_norm = true;
  job.model.tied_embeddings = true;
  job.model.layers[0].attention_window = 256;
  job.model.layers[1].heads = {
      .num_heads = 8, .num_kv_heads = 2, .qk_head_dim = width, .v_head_dim = width};
  job.model.layers[1].key_values = KeyValueSource::kKeysAreValues;
  return job;
}

// Two pairs of layers, of which the second reads keys and values of the first; every layer has an
// embedding of 64 elements of its own.
Job with_shared_keys() {
  Job job = gemma4(128);
  job.model.layers[1].heads.num_kv_heads = 4;
  job.model.layers[1].key_values = KeyValueSource::kOwn;
  const std::vector<LayerSpec> pair = job.model.layers;
  for (LayerSpec layer : pair) {
    layer.key_values = KeyValueSource::kEarlierLayer;
    layer.ffn = 2 * kFfn;
    job.model.layers.push_back(layer);
  }
  job.model.per_layer_embedding = {.vocab = 1024, .width = 64};
  return job;
}

// Experts beside the dense FFN of every layer.
Job with_experts() {
  Job job = gemma4(128);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 256, .beside_dense = true};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

// Of rows of a width: their input and their normed values in fp32, two numbers each, and the weight
// in fp32; without a weight the input and both numbers.
std::int64_t norm_bytes(std::int64_t rows, std::int64_t width) {
  return 8 * rows * width + 8 * rows + 4 * width;
}
std::int64_t value_norm_bytes(std::int64_t rows, std::int64_t width) {
  return 4 * rows * width + 8 * rows;
}

TEST_CASE("norms keep two numbers of every row and their weights in fp32") {
  const std::int64_t of_hidden = norm_bytes(kTokens, kHidden);
  const std::int64_t outputs = 2 * 2 + 1;  // in front of products
  const std::int64_t of_heads = norm_bytes(8 * kTokens, 64) + norm_bytes(4 * kTokens, 64) +
                                value_norm_bytes(4 * kTokens, 64) + norm_bytes(8 * kTokens, 128) +
                                norm_bytes(2 * kTokens, 128) + value_norm_bytes(2 * kTokens, 128);
  const std::int64_t values = 2 * 2 * 128 * kTokens;  // which attention keeps of the second layer
  CHECK(saved_bytes(gemma4(128), "layer.norm") ==
        9 * of_hidden + outputs * 2 * kHidden * kTokens + of_heads + values);
}

// Queries, keys and values for every query head where a mask stands, the output, sums and the mask;
// without one, keys as they are.
TEST_CASE("heads of up to 256 keep what cuDNN's and FlashAttention's kernels keep") {
  const std::int64_t windowed = 4 * 2 * 8 * 64 * kTokens + 4 * 8 * kTokens + 2 * kTokens * kTokens;
  const std::int64_t full = 2 * (2 * 8 + 2) * 128 * kTokens + 4 * 8 * kTokens;
  CHECK(saved_bytes(gemma4(128), "layer.attention") == windowed + full);
}

TEST_CASE("wider heads have keys and values for every query head, mask or none") {
  const std::int64_t windowed = 4 * 2 * 8 * 64 * kTokens + 4 * 8 * kTokens + 2 * kTokens * kTokens;
  Job job = gemma4(512);
  CHECK(saved_bytes(job, "layer.attention") ==
        windowed + 4 * 2 * 8 * 512 * kTokens + 4 * 8 * kTokens);
  job.profile.packed_sequences = true;
  CHECK(saved_bytes(job, "layer.attention") ==
        windowed + 4 * 2 * 8 * 512 * kTokens + 4 * 8 * kTokens + 2 * kTokens * kTokens);
}

// kernel_backward.h: tiles of 64 keys for gradients of keys and values, split in 16, 25 and 12, and
// tiles of 128 queries and 64 columns with four numbers each, of fp32.
TEST_CASE("the memory-efficient kernel accumulates gradients in tiles") {
  CHECK(eager::memory_efficient_workspace(
            {.sequences = 1, .sequence = 1024, .heads = 8, .head_dim = 512}, true) ==
        4 * 8 * (2 * 16 * 64 * 512 + 8 * 8 * (128 * 64 + 4)));
  CHECK(eager::memory_efficient_workspace(
            {.sequences = 1, .sequence = 2048, .heads = 8, .head_dim = 512}, true) ==
        4 * 8 * (2 * 25 * 64 * 512 + 16 * 8 * (128 * 64 + 4)));
  CHECK(eager::memory_efficient_workspace(
            {.sequences = 2, .sequence = 2048, .heads = 8, .head_dim = 256}, true) ==
        4 * 16 * (2 * 12 * 64 * 256 + 16 * 4 * (128 * 64 + 4)));
  // fp32 rounds nothing in the end.
  CHECK(eager::memory_efficient_workspace(
            {.sequences = 1, .sequence = 1024, .heads = 8, .head_dim = 512}, false) ==
        4 * 8 * 8 * 8 * (128 * 64 + 4));
  // More heads than blocks: one split.
  CHECK(eager::memory_efficient_workspace(
            {.sequences = 8, .sequence = 1024, .heads = 64, .head_dim = 512}, true) ==
        4 * 512 * (2 * 64 * 512 + 8 * 8 * (128 * 64 + 4)));
}

// The second pair has no keys and values of its own, and repeats or reads those of the first.
TEST_CASE("layers that read earlier keys keep none of their own") {
  const std::int64_t windowed = 4 * 2 * 8 * 64 * kTokens + 4 * 8 * kTokens + 2 * kTokens * kTokens;
  const std::int64_t full = 2 * (2 * 8 + 4) * 128 * kTokens + 4 * 8 * kTokens;
  const std::int64_t shared = 2 * 4 * 128 * kTokens;
  CHECK(saved_bytes(with_shared_keys(), "layer.attention") == 2 * windowed + 2 * full - shared);
}

// Gate and its activation, the product of a layer's embedding, and the hidden state in front, which
// no other product reads; embeddings of all layers once.
TEST_CASE("embeddings of every layer are kept once, with a gate of each layer") {
  const Job job = with_shared_keys();
  const std::int64_t ffn = 2 * kTokens * 4 * (2 * kFfn + 2 * 2 * kFfn);
  const std::int64_t gates = 4 * 3 * 2 * 64 * kTokens;
  CHECK(saved_bytes(job, "layer.ffn") == ffn + gates);
  Job without = job;
  without.model.per_layer_embedding = {};
  const std::int64_t of_layers = 2 * 4 * 64 * kTokens;
  CHECK(saved_bytes(job, "layer.residual") ==
        saved_bytes(without, "layer.residual") + of_layers + (1 + 4) * 2 * kHidden * kTokens);
}

// What a checkpoint with reentrance gets beside a layer's input is detached with it.
TEST_CASE("checkpoints keep inputs of layers and their embeddings, with reentrance and without") {
  Job job = with_shared_keys();
  Plan plan = trainer_plan(0);
  plan.recompute = {.granularity = RecomputeGranularity::kFull,
                    .method = RecomputeMethod::kUniform,
                    .num_layers = 1};
  const std::int64_t kept =
      trainer_bytes_at(job, plan, MomentKind::kLossBackward, "layer.residual");
  // Inputs of four layers and of the last norm's product, embeddings of layers, and of the model as
  // these read them: the first layer's input.
  CHECK(kept == 4 * 2 * kHidden * kTokens + 2 * 4 * 64 * kTokens);
  job.profile.reentrant_checkpoint = true;
  CHECK(trainer_bytes_at(job, plan, MomentKind::kLossBackward, "layer.residual") == kept);
}

// The router's norm keeps its input in fp32 and two numbers of every row, the channels' scale what
// it scales, and the router's product what it reads. Weights of the two chosen are in fp32 before
// they are scaled by expert and behind, and those scales are kept; Qwen3-MoE's are in bf16.
TEST_CASE("experts beside a dense FFN are kept as Qwen3-MoE's, but for their router") {
  Job qwen3 = small_trainer_job(1);
  qwen3.model.family = "qwen3_moe";
  qwen3.model.moe = with_experts().model.moe;
  qwen3.model.moe.beside_dense = false;
  for (LayerSpec& layer : qwen3.model.layers) { layer.is_moe = true; }
  const std::int64_t router = value_norm_bytes(kTokens, kHidden) + 2 * 2 * kHidden * kTokens +
                              (4 + 2 + 4 - 2) * 2 * kTokens;
  CHECK(saved_bytes(with_experts(), "layer.ffn") ==
        saved_bytes(gemma4(128), "layer.ffn") + saved_bytes(qwen3, "layer.ffn") + 2 * router);
  // Three norms, of which experts read one's output.
  CHECK(saved_bytes(with_experts(), "layer.norm") ==
        saved_bytes(gemma4(128), "layer.norm") + 2 * 3 * norm_bytes(kTokens, kHidden));
}

TEST_CASE("all that a model of Gemma 4 has is counted") {
  for (const Job& job : {gemma4(128), with_shared_keys(), with_experts()}) {
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
    CHECK(trainer_bytes_at(job, MomentKind::kForward, "parameters") ==
          2 * count_parameters(job.model));
  }
}

// A mask of documents is made in every layer without a window, and none in others.
TEST_CASE("FlashAttention in windows leaves masks to the other layers, where texts are packed") {
  Job job = gemma4(512);
  job.profile.attention_backend = AttentionBackend::kFlashInWindows;
  const std::int64_t full = 4 * 2 * 8 * 512 * kTokens + 4 * 8 * kTokens;
  const std::int64_t flash = 2 * (2 * 8 + 4) * 64 * kTokens + 4 * 8 * kTokens;
  CHECK(saved_bytes(job, "layer.attention") == flash + full);
  CHECK(saved_bytes(job, "attention_mask") == 0);
  job.profile.packed_sequences = true;
  CHECK(saved_bytes(job, "layer.attention") == flash + full);
  CHECK(saved_bytes(job, "attention_mask") == 2 * kTokens * kTokens);
}

}  // namespace
}  // namespace shardplan::transformers
