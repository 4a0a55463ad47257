// What a layer of our own trainer takes in fp8 beside its products, once those are measured.
#include <doctest/doctest.h>

#include "data/read/library.h"
#include "estimator/answer/model_times.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/block_work.h"
#include "tests/measured_host.h"

namespace shardplan {
namespace {

// Llama-3-8B, 8192 tokens. One rate for all products, in bf16 and fp8: what remains between the two
// is the rounding.
Job job_of_equal_products() {
  const Library library;
  Job job = {.model = library.model("llama3-8b").model,
             .cluster = library.cluster("1x1-h200"),
             .profile = library.framework("native"),
             .sequence_length = 8192,
             .global_batch = 1};
  const std::vector<double> rate = {1e15};
  MeasuredTimes times;
  times.gemm = {.m = {16},
                .n = {16},
                .k = {16},
                .forward = rate,
                .input_gradient = rate,
                .weight_gradient = rate,
                .accumulated = rate};
  times.gemm_fp8 = times.gemm;
  times.gemm_fp8.accumulated.clear();
  times.attention = {{.head_dim = 128,
                      .forward = {{.size = 8192, .value = 5e14}},
                      .backward = {{.size = 8192, .value = 5e14}}}};
  times.copy_bytes_per_s = 4e12;
  job.cluster.gpu.times = times;
  return job;
}

}  // namespace

// Inputs of the four linear layers 4096, 4096, 4096 and 14336 wide, outputs 6144, 4096, 28672 and
// 4096; weights 4096 x 6144, 4096 x 4096, 4096 x 28672, 14336 x 4096.
TEST_CASE("a layer of our own trainer moves 2.2 GB forward and 4.3 GB backward to round to fp8") {
  const Job job = job_of_equal_products();
  constexpr double kInputs = 8192 * 26624.0;
  constexpr double kOutputs = 8192 * 43008.0;
  constexpr double kWeights = 218103808;
  const BlockTime bf16 = layer_time(job, {}, {});
  const BlockTime fp8 = layer_time(job, {.precision = Precision::kFp8}, {});
  const auto bytes = [](double seconds) { return seconds * 4e12 * 0.93; };
  CHECK(bytes(fp8.forward_s - bf16.forward_s) == doctest::Approx(5 * kInputs + 5 * kWeights));
  CHECK(bytes(fp8.backward_input_s - bf16.backward_input_s) ==
        doctest::Approx(6 * kOutputs + 5 * kWeights));
  CHECK(bytes(fp8.backward_weight_s - bf16.backward_weight_s) == doctest::Approx(5 * kInputs));
  CHECK(5 * kInputs + 5 * kWeights == doctest::Approx(2.18e9).epsilon(0.01));
  CHECK(6 * kOutputs + 5 * kWeights + 5 * kInputs == doctest::Approx(4.29e9).epsilon(0.01));
}

// Transformer Engine rounds inputs and gradients of every microbatch, and weights of the first.
TEST_CASE("Transformer Engine rounds weights to fp8 once a step") {
  Job job = job_of_equal_products();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  job.profile.fp8_recipe = Fp8Recipe::kDelayed;
  const Plan plan = {.precision = Precision::kFp8};
  const ProductShape shape = {.m = 8192, .n = 14336, .k = 4096};
  const auto rounded_bytes = [&](std::int64_t microbatches, double BlockTime::*pass) {
    job.global_batch = microbatches;
    const BlockContext context = block_context(job, plan);
    const double bf16 = linear(context, shape, Precision::kBf16).*pass;
    return (linear(context, shape, Precision::kFp8).*pass - bf16) * 4e12 * 0.93;
  };
  constexpr double kInput = 8192 * 4096.0;
  constexpr double kOutput = 8192 * 14336.0;
  constexpr double kWeight = 4096 * 14336.0;
  CHECK(rounded_bytes(1, &BlockTime::forward_s) == doctest::Approx(4 * (kInput + kWeight)));
  CHECK(rounded_bytes(8, &BlockTime::forward_s) == doctest::Approx(4 * kInput + kWeight / 2));
  CHECK(rounded_bytes(8, &BlockTime::backward_input_s) == doctest::Approx(4 * kOutput));
}

// Scales of now need the largest value before anything is rounded: 56 to 328 us in the eight layers
// of data/measured/fp8_products_h100.csv, the 2 bytes of each factor once more.
TEST_CASE("Transformer Engine's current scaling reads every factor once more than delayed does") {
  Job job = job_of_equal_products();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  const Plan plan = {.precision = Precision::kFp8};
  const ProductShape shape = {.m = 8192, .n = 14336, .k = 4096};
  const auto bytes = [&](Fp8Recipe recipe, double BlockTime::*pass) {
    job.profile.fp8_recipe = recipe;
    return linear(block_context(job, plan), shape, Precision::kFp8).*pass * 4e12 * 0.93;
  };
  const auto more = [&](double BlockTime::*pass) {
    return bytes(Fp8Recipe::kTensorwise, pass) - bytes(Fp8Recipe::kDelayed, pass);
  };
  CHECK(more(&BlockTime::forward_s) == doctest::Approx(2 * (8192 * 4096.0 + 4096 * 14336.0)));
  CHECK(more(&BlockTime::backward_input_s) == doctest::Approx(2 * 8192 * 14336.0));
}

// Products of the same file, with a scale for 128 values over those with one for a tensor: 1.10 to
// 1.26 times as long.
TEST_CASE("products with a scale for 128 values take a fifth longer on Hopper") {
  Job job = job_of_equal_products();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  const Plan plan = {.precision = Precision::kFp8};
  const auto seconds = [&](Fp8Recipe recipe, const ProductShape& shape) {
    job.profile.fp8_recipe = recipe;
    return linear(block_context(job, plan), shape, Precision::kFp8).backward_weight_s;
  };
  for (const ProductShape& shape : {ProductShape{.m = 8192, .n = 6144, .k = 16384},
                                    ProductShape{.m = 2048, .n = 4096, .k = 4096}}) {
    CHECK(seconds(Fp8Recipe::kBlockwise, shape) / seconds(Fp8Recipe::kDelayed, shape) ==
          doctest::Approx(1.2).epsilon(0.05));
  }
}

// Two pieces of 4096 tokens multiply with one rounded weight. The gradient of an output is rounded
// piece by piece, by rows for the input's, and as a whole by columns for the weight's.
TEST_CASE("pieces of tokens do not round weights again, but the gradients of outputs") {
  Job job = job_of_equal_products();
  job.cluster.gpus_per_node = 8;
  const Plan plan = {.tp = 2, .precision = Precision::kFp8};
  const BlockContext context = block_context(job, plan);
  const ProductShape shape = {.m = 8192, .n = 14336, .k = 4096};
  const auto rounded_bytes = [&](double BlockTime::*pass) {
    const BlockTime bf16 = linear(context, shape, Precision::kBf16);
    const BlockTime fp8 = linear(context, shape, Precision::kFp8);
    return (fp8.*pass - bf16.*pass) * 4e12 * 0.93;
  };
  constexpr double kInput = 8192 * 4096.0;
  constexpr double kOutput = 8192 * 14336.0;
  constexpr double kWeight = 4096 * 14336.0;
  CHECK(rounded_bytes(&BlockTime::forward_s) == doctest::Approx(5 * (kInput + kWeight)));
  CHECK(rounded_bytes(&BlockTime::backward_input_s) == doctest::Approx(5 * (kOutput + kWeight)));
  CHECK(rounded_bytes(&BlockTime::backward_weight_s) == doctest::Approx(5 * (kInput + kOutput)));
  job.profile.tensor_parallel_chunk_tokens = 8192;
  CHECK(rounded_bytes(&BlockTime::backward_input_s) == doctest::Approx(6 * kOutput + 5 * kWeight));
  CHECK(rounded_bytes(&BlockTime::backward_weight_s) == doctest::Approx(5 * kInput));
  job.profile.tensor_parallel_chunk_tokens = 4096;
  job.sequence_length = 8200;  // no pieces of it are multiples of 16 tokens
  CHECK(rounded_bytes(&BlockTime::backward_input_s) == doctest::Approx(6 * kOutput + 5 * kWeight));
  CHECK(rounded_bytes(&BlockTime::backward_weight_s) == doctest::Approx(5 * kInput));
}

// A card at the limit of its power clocks higher while it rounds than while it multiplies.
TEST_CASE("measured fp8 products run faster between the kernels that round their factors") {
  Job job = job_of_equal_products();
  const Plan plan = {.precision = Precision::kFp8};
  const auto gained = [&](const Plan& with) {
    job.cluster.gpu.times->copy_clock_over_products = 1;
    const double slow_s = layer_time(job, with, {}).forward_s;
    job.cluster.gpu.times->copy_clock_over_products = 1.3;
    return 1 - layer_time(job, with, {}).forward_s / slow_s;
  };
  CHECK(gained(plan) > 1.5 * gained({}));
  job.cluster.gpu.times->gemm_fp8 = {};
  const BlockContext context = block_context(job, plan);
  BlockContext clocked = context;
  clocked.clock = {.products = 0.5};
  const ProductShape shape = {.m = 8192, .n = 4096, .k = 4096};
  CHECK(linear(clocked, shape, plan.precision).forward_s ==
        linear(context, shape, plan.precision).forward_s);
}

}  // namespace shardplan
