// What Llama 4 saves of a forward pass, counted by hand, and by hooks on saved tensors of the same
// small model under transformers 5.17 on the CPU.
#include <doctest/doctest.h>

#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kFfn = 256;

// A layer in chunks of 8,192 tokens whose heads are turned, 8 of 64 with 4 of keys; and one without
// either. Each has 4 experts and a shared one.
Job llama4() {
  Job job = small_trainer_job(1);
  job.model.family = "llama4_text";
  job.model.moe = {.num_experts = kExperts, .topk = 1, .expert_ffn = kFfn, .shared_ffn = kFfn};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  job.model.layers[0].attention_window = 8192;
  job.model.layers[1].has_rotary = false;
  return job;
}

// Inputs in fp32 and a number of each row, values in bf16 for the weight, and the outputs in front
// of products; of turned heads inputs, numbers, queries and keys.
TEST_CASE("turned heads have norms without weights") {
  const std::int64_t of_hidden = 4 * kTokens * kHidden + 4 * kTokens + 2 * 2 * kTokens * kHidden;
  const std::int64_t of_heads = (4 + 2) * 12 * 64 * kTokens + 4 * 12 * kTokens;
  CHECK(saved_bytes(llama4(), "layer.norm") == 5 * of_hidden + of_heads);
}

// Values, the output and sums; queries and keys of the layer that does not turn them, whose queries
// a number of each position scales in fp32.
TEST_CASE("heads that are not turned are scaled by their positions") {
  const std::int64_t both = 2 * (2 * (4 + 8) * 64 * kTokens + 4 * 8 * kTokens);
  CHECK(saved_bytes(llama4(), "layer.attention") ==
        both + 2 * (8 + 4) * 64 * kTokens + 4 * kTokens);
}

// Of every expert all tokens, as they are and scaled; gate and up, the activation, and both
// multiplied. Of every token a place and scores in fp32, and in bf16 a column; of the shared expert
// four widths.
TEST_CASE("every expert sees every token") {
  const std::int64_t rows = kExperts * kTokens;
  const std::int64_t scores = 8 * kTokens + 4 * rows + 2 * rows;
  const std::int64_t experts = 2 * rows * (2 * kHidden + 4 * kFfn);
  const std::int64_t shared = 2 * kTokens * 4 * kFfn;
  CHECK(saved_bytes(llama4(), "layer.ffn") == 2 * (scores + experts + shared));
}

TEST_CASE("FFNs between experts, packed experts and FlashAttention are refused") {
  check_refused(llama4(),
                {{"unsupported: model.family",
                  [](Job& job, Plan&) { job.model.layers[0].is_moe = false; },
                  {"llama4_text", "FFNs between experts"}},
                 {"unsupported: model.family",
                  [](Job& job, Plan&) { job.profile.linear_experts = true; },
                  {"llama4_text", "experts packed"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
