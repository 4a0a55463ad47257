// Data parallelism's exposed seconds: laws of links, hosts and groups, over case lines.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/read/case_line.h"
#include "estimator/estimate.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

Case case_of(const std::string& members) {
  return read_case(R"({"schema":1,"id":"case",)" + members + "}", "case", Library());
}

// 128 GPUs in nodes of 8, of which every expert's gradients cross the network from each node once.
Case experts_over_nodes() {
  return case_of(R"("framework":"megatron","model":"mixtral-8x7b","cluster":"16x8-h100",
    "training":{"sequence_length":4096,"micro_batch":1,"global_batch":128,"precision":"bf16"},
    "plan":{"zero":1,"ep":8},
    "options":{"overlap_grad_reduce":true,"overlap_param_gather":false})");
}

TEST_CASE("what hides of experts' gradients goes by the links of their own group") {
  Case question = experts_over_nodes();
  const StepTime beside = estimate_step_time(question.job, question.plan);
  question.job.profile.overlap_grad_reduce = false;
  const StepTime alone = estimate_step_time(question.job, question.plan);
  // By hand: one rank of a node takes 42.5 of the 104 GB/s that products leave to a collective, so
  // that nearly all of the 0.39 s of the backward pass hides something.
  const double hidden_s = alone.exposed_dp_s - beside.exposed_dp_s;
  CHECK(hidden_s > 0.3);
  CHECK(hidden_s < 0.4);
}

TEST_CASE("faster rails never make a step slower, experts' groups or not") {
  const std::vector<std::string> plans = {
      R"("framework":"native","model":"moonlight-16b-a3b","cluster":"128x8-h200",
         "training":{"sequence_length":8192,"micro_batch":1,"global_batch":512},
         "plan":{"tp":4,"zero":2,"ep":1,"sequence_parallel":true})",
      R"("framework":"native","model":"qwen3-30b-a3b","cluster":"16x8-h200",
         "training":{"sequence_length":4096,"micro_batch":2,"global_batch":512},
         "plan":{"tp":2,"zero":3,"ep":1,"sequence_parallel":true,
                 "recompute":{"granularity":"full","method":"uniform","num_layers":1}})"};
  for (const std::string& plan : plans) {
    CAPTURE(plan);
    Case question = case_of(plan);
    const double usual = question.job.cluster.inter_node_bytes_per_s;
    double before_s = 1e9;
    for (const double times : {0.5, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0}) {
      question.job.cluster.inter_node_bytes_per_s = times * usual;
      const double step_s = estimate_step_time(question.job, question.plan).total_s;
      CHECK(step_s <= before_s * (1 + 1e-12));
      before_s = step_s;
    }
  }
}

TEST_CASE("a slower host never makes a step faster") {
  Case question = case_of(R"("framework":"torchtitan","model":"llama3-70b","cluster":"4x8-b200",
    "training":{"sequence_length":2048,"micro_batch":1,"global_batch":16},
    "plan":{"cp":4,"zero":3})");
  double before_s = 0;
  for (const double slowdown : {0.3, 0.4, 0.5, 0.8, 1.0, 1.5, 2.0}) {
    question.job.cluster.host_slowdown = slowdown;
    const double step_s = estimate_step_time(question.job, question.plan).total_s;
    CHECK(step_s >= before_s * (1 - 1e-12));
    before_s = step_s;
  }
}

// The plans of data/measured/frameworks_four_gpus_h100.jsonl: 2,359,349,248 parameters, two
// microbatches.
Case deepspeed_on_four(const std::string& framework, int zero, const std::string& options) {
  return case_of(R"("framework":")" + framework + R"(","model":{"model_type":"llama",
    "hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":6,"num_attention_heads":32,
    "num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false},
    "cluster":{"gpu":"h100","gpus_per_node":4,"nodes":1},
    "training":{"sequence_length":4096,"micro_batch":1,"num_microbatches":2,"precision":"bf16"},
    "plan":{"dp":4,"zero":)" +
                 std::to_string(zero) + R"(},"options":{)" + options + "}");
}

// Six layers of Llama-3-8B's widths on two H200 (data/measured/overlaps_two_gpus_h200.jsonl,
// fsdp-dense-bf16): 218,112,000 parameters a layer, of which three are gathered ahead, embedding,
// head and final norm 262,148,096.
TEST_CASE("Megatron-FSDP's passes begin and end with what nothing hides") {
  const Case question = case_of(R"("framework":"megatron","cluster":"1x2-h200",
    "model":{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,
             "num_hidden_layers":6,"num_attention_heads":32,"num_key_value_heads":8,
             "vocab_size":32000,"tie_word_embeddings":false},
    "training":{"sequence_length":4096,"micro_batch":1,"num_microbatches":2,"precision":"bf16"},
    "plan":{"zero":3,"grad_dtype":"bf16"})");
  const Job& job = question.job;
  constexpr double kLayer = 218'112'000;
  constexpr double kEnds = 262'148'096;
  constexpr double kAll = 6 * kLayer + kEnds;
  RankParameters held;
  held.held.dense = static_cast<std::int64_t>(kAll);
  const RankUpdate update =
      rank_update(job, question.plan, ShardingGroups(job, question.plan), held);
  CHECK(update.of_fsdp.layers == doctest::Approx(6 * kLayer / kAll));
  CHECK(update.of_fsdp.first == doctest::Approx(kLayer / kAll));
  CHECK(update.of_fsdp.ahead == doctest::Approx(4 * kLayer / kAll));
  const auto exposed_s = [&](std::int64_t microbatches, double work_s) {
    return exposed_data_parallel_s(job, question.plan, update, microbatches,
                                   {.forward_s = work_s, .backward_s = work_s});
  };
  const double gather_s = update.gather.alone_s;
  const double reduce_s = update.reduce.alone_s;
  // Behind nothing all is seen: layers are gathered twice for each microbatch, the ends once.
  CHECK(exposed_s(2, 0) ==
        doctest::Approx((kEnds + 4 * 6 * kLayer) / kAll * gather_s + 2 * reduce_s));
  const double of_microbatch_s = exposed_s(2, 10) - exposed_s(1, 10);
  const double begins_s = 5 * kLayer / kAll * gather_s + (kEnds + kLayer) / kAll * reduce_s;
  const double hides_s = 7 * kLayer / kAll * gather_s + 5 * kLayer / kAll * reduce_s;
  CHECK(of_microbatch_s > begins_s);
  CHECK(of_microbatch_s < begins_s + hides_s / 2);
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
    return rank_update(question.job, question.plan, ShardingGroups(question.job, question.plan),
                       {.held = {.dense = 2'359'349'248}})
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
}  // namespace shardplan
