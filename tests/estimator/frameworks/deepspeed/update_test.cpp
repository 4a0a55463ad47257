// DeepSpeed's update: overlapped buckets, copies of shared gathers, the check for overflow.
#include "estimator/frameworks/deepspeed/update.h"

#include <doctest/doctest.h>

#include <string>

#include "data/read/case_line.h"
#include "estimator/estimate.h"
#include "tests/estimator/rank_updates.h"

namespace shardplan::deepspeed {
namespace {

// The plans of data/measured/frameworks_four_gpus_h100.jsonl: 2,359,349,248 parameters, two
// microbatches.
Case deepspeed_on_four(const std::string& framework, int zero, const std::string& options) {
  return read_case(R"({"schema":1,"id":"case","framework":")" + framework +
                       R"(","model":{"model_type":"llama",
    "hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":6,"num_attention_heads":32,
    "num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false},
    "cluster":{"gpu":"h100","gpus_per_node":4,"nodes":1},
    "training":{"sequence_length":4096,"micro_batch":1,"num_microbatches":2,"precision":"bf16"},
    "plan":{"dp":4,"zero":)" +
                       std::to_string(zero) + R"(},"options":{)" + options + "}}",
                   "case", Library());
}

// Five buckets, of 525, 495, 495, 319 and 525 million elements; the last two come when the backward
// pass has ended. ZeRO-1 reduces once a step, ZeRO-2 in every microbatch.
TEST_CASE("DeepSpeed's overlap_comm hides what it reduces before the last buckets") {
  const auto exposed_s = [](int zero, const std::string& options) {
    const Case question = deepspeed_on_four("deepspeed", zero, options);
    return estimate_step_time(question.job, question.plan).exposed_dp_s;
  };
  const auto hidden_s = [&](int zero, const std::string& bucket) {
    return exposed_s(zero, R"("overlap_comm":"off")" + bucket) -
           exposed_s(zero, R"("overlap_comm":"on")" + bucket);
  };
  const double reduced_s = exposed_s(2, R"("overlap_comm":"off")") -
                           exposed_s(1, R"("overlap_comm":"off")");  // once more
  CHECK(hidden_s(1, "") > 0.3 * reduced_s);
  CHECK(hidden_s(1, "") < (525 + 495 + 495) / 2359.0 * reduced_s);
  CHECK(hidden_s(2, "") == doctest::Approx(2 * hidden_s(1, "")));
  CHECK(hidden_s(1, R"(,"reduce_bucket_elements":5000000000)") == doctest::Approx(0));
}

// A gather takes tensors until it exceeds the prefetch bucket of 50 million elements: q, k, v, o
// and gate of a layer share one, which are copied out of it; up and down are gathered in place.
TEST_CASE("DeepSpeed's ZeRO-3 copies what shares a gather") {
  const auto copies_s = [](const std::string& options) {
    const Case question = deepspeed_on_four("deepspeed", 3, options);
    return rank_update(question.job, question.plan, {.held = {.dense = 2'359'349'248}})
        .gather_copies_s;
  };
  const double together = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 4096.0 * 14336;
  const GpuSpec gpu = deepspeed_on_four("deepspeed", 3, "").job.cluster.gpu;
  CHECK(copies_s("") ==
        doctest::Approx(elementwise_s(gpu, 6 * together * KernelBytes{.streamed = 4})));
  CHECK(copies_s(R"("prefetch_bucket_elements":1)") == 0);
}

// Kernels of the step of the first rank: 0.47 ms for the largest values, 0.46 for the smallest.
TEST_CASE("DeepSpeed 0.19.6's overflow check takes what its kernels took, 0.19.5's nine times") {
  const auto update_s = [](const std::string& framework) {
    const Case question = deepspeed_on_four(framework, 1, "");
    return estimate_step_time(question.job, question.plan).optimizer_s;
  };
  const double by_extremes_s = update_s("deepspeed") - update_s("deepspeed@0.16.9");
  CHECK(by_extremes_s == doctest::Approx(0.93e-3).epsilon(0.15));
  const double by_copies_s = update_s("deepspeed@0.19.5") - update_s("deepspeed@0.16.9");
  CHECK(by_copies_s / by_extremes_s > 8.5);
  CHECK(by_copies_s / by_extremes_s < 9.5);
}

}  // namespace
}  // namespace shardplan::deepspeed
