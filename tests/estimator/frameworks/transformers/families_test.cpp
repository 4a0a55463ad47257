// What families of models save of a forward pass beside what Llama's saves, counted by hand.
#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>

#include "estimator/frameworks/transformers/trainer.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kHeadDim = 64;

// Bytes of a row that are alive when a moment first begins.
std::int64_t bytes_at(const Job& job, MomentKind moment, std::string_view name) {
  const PlayedRun run = trainer_run(job, trainer_plan(0), 1);
  std::int64_t end = 0;
  for (auto found = run.moments.rbegin(); found != run.moments.rend(); ++found) {
    end = found->moment == moment ? found->event : end;
  }
  REQUIRE(end > 0);
  std::vector<std::int64_t> bytes_of_id(run.events.size() + 1);
  std::size_t label = 0;
  std::int64_t alive = 0;
  for (std::int64_t i = 0; i < end; ++i) {
    const AllocationEvent& event = run.events[static_cast<std::size_t>(i)];
    std::int64_t& bytes = bytes_of_id[static_cast<std::size_t>(event.id)];
    if (event.bytes == 0) {
      alive -= bytes;
      continue;
    }
    while (label + 1 < run.labels.size() && run.labels[label + 1].after_id < event.id) { ++label; }
    bytes = run.labels[label].label->name == name ? event.bytes : 0;
    alive += bytes;
  }
  return alive;
}

std::int64_t saved_bytes(const Job& job, std::string_view name) {
  return bytes_at(job, MomentKind::kLossForward, name);
}

Job gemma2() {
  Job job = small_trainer_job(1);
  job.model.family = "gemma2";
  job.model.norms_per_layer = 4;
  job.model.tied_embeddings = true;
  return job;
}

// A norm saves its input in fp32, the root of every row, the normed value and 1 + weight in fp32;
// norms in front of products and the last one leave an output in bf16 as well.
TEST_CASE("Gemma's four norms save fp32, and an output only where a product reads it") {
  const std::int64_t norm = 8 * kHidden * kTokens + 4 * kTokens + 4 * kHidden;
  const std::int64_t output = 2 * kHidden * kTokens;
  CHECK(saved_bytes(gemma2(), "layer.norm") == 2 * (4 * norm + 2 * output) + norm + output);
}

// Llama's save the normed value in bf16, in front of its product with the weight.
TEST_CASE("Llama's norms save the normed value in the type of the stream") {
  const std::int64_t norm = 6 * kHidden * kTokens + 4 * kTokens;
  const std::int64_t output = 2 * kHidden * kTokens;
  CHECK(saved_bytes(small_trainer_job(1), "layer.norm") == 5 * (norm + output));
}

TEST_CASE("capped logits keep what tanh made of them") {
  Job job = gemma2();
  const std::int64_t uncapped = bytes_at(job, MomentKind::kLossBackward, "head.logits");
  job.model.caps_logits = true;
  CHECK(bytes_at(job, MomentKind::kLossBackward, "head.logits") == uncapped + 2 * kVocab * kTokens);
}

// Eager attention caps its scores, 8 heads of 512 * 512 in bf16, which tanh saves.
TEST_CASE("capped scores are kept where attention is eager, and left out where it is not") {
  Job job = gemma2();
  const std::int64_t fused = saved_bytes(job, "layer.attention");
  job.model.caps_scores = true;
  CHECK(saved_bytes(job, "layer.attention") == fused);
  job.profile.attention_backend = AttentionBackend::kUnfused;
  const std::int64_t capped = saved_bytes(job, "layer.attention");
  job.model.caps_scores = false;
  CHECK(capped == saved_bytes(job, "layer.attention") + 2 * 2 * 8 * kTokens * kTokens);
}

// A layer with a window saves a mask in bf16, and keys and values of 8 heads in place of 4.
TEST_CASE("only layers with a window have a mask") {
  Job job = gemma2();
  const std::int64_t causal = saved_bytes(job, "layer.attention");
  const std::int64_t masked = 2 * kTokens * kTokens + 2 * 2 * (8 - 4) * kHeadDim * kTokens;
  job.model.layers[0].attention_window = 256;
  CHECK(saved_bytes(job, "layer.attention") == causal + masked);
  job.model.layers[1].attention_window = 256;
  CHECK(saved_bytes(job, "layer.attention") == causal + 2 * masked);
  for (LayerSpec& layer : job.model.layers) { layer.attention_window = 513; }
  CHECK(saved_bytes(job, "layer.attention") == causal);
}

TEST_CASE("Gemma 3 has cosines and sines for either kind of layer") {
  Job job = gemma2();
  job.model.layers[0].attention_window = 256;
  const std::int64_t pair = 2 * 2 * kTokens * kHeadDim;
  CHECK(saved_bytes(job, "rotary_embedding") == pair);
  job.model.family = "gemma3_text";
  CHECK(saved_bytes(job, "rotary_embedding") == 2 * pair);
}

}  // namespace
}  // namespace shardplan::transformers
