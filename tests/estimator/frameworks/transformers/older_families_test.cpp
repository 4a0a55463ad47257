// What families from before Llama save of a forward pass, counted by hand.
#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kQuery = kHeads * kHeadDim;
constexpr std::int64_t kLayers = 2;

Job older(const char* family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.model.gated_ffn = false;
  job.model.activation = Activation::kGelu;
  job.model.layer_norm = true;
  job.model.tied_embeddings = true;
  return job;
}

// Falcon 7B: one head of keys, one norm.
Job falcon() {
  Job job = older("falcon");
  job.model.num_kv_heads = 1;
  job.model.norms_per_layer = 1;
  job.model.parallel_ffn = true;
  return job;
}

// Falcon 40B: 4 heads of keys, two norms.
Job new_falcon() {
  Job job = falcon();
  job.model.num_kv_heads = 4;
  job.model.norms_per_layer = 2;
  return job;
}

Job gpt2() {
  Job job = older("gpt2");
  job.model.num_kv_heads = kHeads;
  job.model.learned_positions = 1024;
  job.model.qkv_bias = true;
  job.model.attention_output_bias = true;
  job.model.ffn_bias = true;
  for (LayerSpec& layer : job.model.layers) { layer.has_rotary = false; }
  return job;
}

Job gptj() {
  Job job = older("gptj");
  job.model.num_kv_heads = kHeads;
  job.model.rotary_share = 0.25;
  job.model.activation = Activation::kNewGelu;
  job.model.norms_per_layer = 1;
  job.model.parallel_ffn = true;
  job.model.ffn_bias = true;
  job.model.head_bias = true;
  job.model.tied_embeddings = false;
  job.model.max_sequence_length = 2048;
  return job;
}

// Autocast has LayerNorm in fp32: its input, mean and deviation of every row, weight and bias. What
// it gives is fp32 and is cast by those who read it; the last one's is still there.
constexpr std::int64_t kNorm = (4 * kHidden + 2 * 4) * kTokens + 2 * 4 * kHidden;
constexpr std::int64_t kLast = 4 * kHidden * kTokens;
constexpr std::int64_t kCast = 2 * kHidden * kTokens;

// scaled_dot_product_attention takes no fused kernel for one head of keys beside eight of queries:
// scaled queries and keys, values and probabilities in fp32, and the output with tokens in front.
TEST_CASE("one head of keys for all queries keeps all probabilities in fp32") {
  const std::int64_t by_layer = 4 * (kQuery + 2 * kHeadDim) * kTokens +
                                4 * kHeads * kTokens * kTokens + 2 * kQuery * kTokens + kCast;
  CHECK(saved_bytes(falcon(), "layer.attention") == kLayers * by_layer);
}

// Of several sequences products take copies, of keys and values one for every head.
TEST_CASE("of several sequences one head of keys is copied for all of them") {
  Job job = falcon();
  job.global_batch = 2;
  Plan plan = trainer_plan(0);
  plan.micro_batch = 2;
  const std::int64_t by_layer = 4 * 3 * kQuery * 2 * kTokens + 4 * kHeads * 2 * kTokens * kTokens +
                                2 * kQuery * 2 * kTokens + 2 * kCast;
  CHECK(trainer_bytes_at(job, plan, MomentKind::kLossForward, "layer.attention") ==
        kLayers * by_layer);
}

// FlashAttention takes fewer heads of keys as they are: queries, keys, values, output, and a sum in
// fp32 for every row.
TEST_CASE("FlashAttention keeps no probabilities of one head of keys") {
  Job job = falcon();
  job.profile.attention_backend = AttentionBackend::kFlash;
  CHECK(saved_bytes(job, "layer.attention") ==
        kLayers * ((2 * (2 * kQuery + 2 * kHeadDim) + 4 * kHeads) * kTokens + kCast));
}

// Queries, keys and values of all eight heads, the output, a sum a row, and the mask in bf16.
TEST_CASE("Falcon's newer layers copy keys and values for every head of queries") {
  CHECK(saved_bytes(new_falcon(), "layer.attention") ==
        kLayers * ((2 * 4 * kQuery + 4 * kHeads) * kTokens + 2 * kTokens * kTokens + kCast));
}

// Made of one for a sequence.
TEST_CASE("Falcon has a mask of bytes that all layers share") {
  const auto most = [](const Job& job) {
    return most_bytes(job, trainer_plan(0), MomentKind::kForward, "attention_mask");
  };
  CHECK(most(falcon()) == 2 * kTokens * kTokens);
  Job flash = falcon();
  flash.profile.attention_backend = AttentionBackend::kFlash;
  CHECK(most(flash) == 0);
}

TEST_CASE("Falcon's layers have one norm or two of one input, which each casts") {
  CHECK(saved_bytes(falcon(), "layer.norm") == (kLayers + 1) * kNorm + kLast);
  CHECK(saved_bytes(new_falcon(), "layer.norm") == (2 * kLayers + 1) * kNorm + kLast);
}

// The input of either norm is the stream's, which is kept once.
TEST_CASE("without autocast two norms of one input keep it once") {
  Job one = falcon();
  Job two = new_falcon();
  one.profile.autocast = false;
  two.profile.autocast = false;
  CHECK(saved_bytes(one, "layer.residual") == saved_bytes(two, "layer.residual"));
}

// Queries, keys and values as one tensor of rows, the output and a sum a row.
TEST_CASE("GPT-2 keeps one tensor of queries, keys and values") {
  CHECK(saved_bytes(gpt2(), "layer.attention") ==
        kLayers * ((2 * 4 * kQuery + 4 * kHeads) * kTokens + kCast));
  CHECK(saved_bytes(gpt2(), "rotary_embedding") == 0);
}

// Queries, keys and values, the output, probabilities in fp32 and cast for their product, and
// cosines and sines of a quarter of a head for queries and for keys; each projection casts the
// norm's output. Without autocast queries and keys are multiplied in fp32.
TEST_CASE("GPT-J attends in fp32 and keeps its probabilities twice") {
  const std::int64_t tables = 2 * 2 * 2 * (kHeadDim / 4) * kTokens;
  const std::int64_t scores = (4 + 2) * kHeads * kTokens * kTokens;
  Job job = gptj();
  CHECK(saved_bytes(job, "layer.attention") ==
        kLayers * (2 * 4 * kQuery * kTokens + scores + tables + 3 * kCast));
  job.profile.autocast = false;
  CHECK(saved_bytes(job, "layer.attention") ==
        kLayers * ((2 * 4 + 2 * 2) * kQuery * kTokens + scores + tables));
  CHECK(saved_bytes(job, "buffers") == kLayers * 4 * 2048 * kHeadDim / 4);
}

TEST_CASE("weights of older families are those that their models count") {
  for (const Job& job : {falcon(), new_falcon(), gpt2(), gptj()}) {
    CAPTURE(job.model.family);
    CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
  }
}

TEST_CASE("what of older families is not described is refused by its name") {
  const auto unfuse = [](Job& job, Plan&) {
    job.profile.attention_backend = AttentionBackend::kUnfused;
  };
  const auto shift = [](Job& job, Plan&) { job.model.has_alibi = true; };
  const auto lengthen = [](Job& job, Plan&) { job.sequence_length = 2048; };
  const auto place = [](Job& job, Plan&) { job.model.learned_positions = 1024; };
  const Plan plan = trainer_plan(0);
  check_refused(falcon(),
                {{"unsupported: attention_backend", unfuse, {"unfused with model.family falcon"}},
                 {"unsupported: model.layers", shift, {"ALiBi (falcon)"}}},
                plan);
  check_refused(gpt2(),
                {{"unsupported: attention_backend", unfuse, {"unfused with model.family gpt2"}},
                 {"sequence_within_learned_positions", lengthen, {"2048", "1024"}}},
                plan);
  const auto fuse = [](Job& job, Plan&) {
    job.profile.attention_backend = AttentionBackend::kFlash;
  };
  check_refused(
      gptj(), {{"unsupported: attention_backend", fuse, {"unfused with model.family gptj"}}}, plan);
  check_refused(small_trainer_job(1),
                {{"unsupported: model.learned_positions", place, {"1024", "gpt2"}}}, plan);
}

}  // namespace
}  // namespace shardplan::transformers
