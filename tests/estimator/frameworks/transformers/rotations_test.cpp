// OFT's rotations in front of linear layers, counted by hand. What autograd saves of peft 0.21's
// OFT Linear under autocast was read with torch.autograd.graph.saved_tensors_hooks on the CPU: of
// 128 rows of 256 inputs in blocks of 32 the rows in bf16, seven matrices of a block each in bf16,
// and the places above a diagonal; of the frozen layer nothing.
#include <doctest/doctest.h>

#include <string_view>

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kBlock = 32;
// Inputs of a layer's linear layers: q, k, v, o, gate and up read 512, down 1,024.
constexpr std::int64_t kInputs = 6 * 512 + 1024;
constexpr std::int64_t kAboveDiagonal = kBlock * (kBlock - 1) / 2;

Job rotating_job(std::int64_t gpus = 1) {
  Job job = small_trainer_job(gpus);
  job.adapters = adapters_on_all(kBlock);
  job.adapters.kind = AdapterKind::kOft;
  return job;
}

TEST_CASE("a rotation has what stands above the diagonal of each of its blocks") {
  const Job job = rotating_job();
  constexpr std::int64_t kTrained = 2 * kInputs / kBlock * kAboveDiagonal;
  CHECK(huggingface::adapter_elements(job) == kTrained);
  // In fp32, and for each of 14 layers the rows and columns of a block's places.
  CHECK(idle_bytes(job, trainer_plan(0), "adapters") == 4 * kTrained + 14 * 2 * 8 * kAboveDiagonal);
}

TEST_CASE("blocks divide the inputs of their layer") {
  CHECK(huggingface::rotated_together(4096, 32) == 32);
  CHECK(huggingface::rotated_together(18944, 32) == 32);
  CHECK(huggingface::rotated_together(100, 32) == 25);  // 25 is 7 away, 50 is 18
  CHECK(huggingface::rotated_together(16, 32) == 16);
}

TEST_CASE("a rotation keeps its input and powers of its matrices, the layer behind it nothing") {
  constexpr std::int64_t kMatrix = 2 * kBlock;  // bytes of each input
  // The first layer's q, k and v keep no rotation: their inputs have no gradient.
  CHECK(saved_bytes(rotating_job(), "adapter.activations") ==
        2 * kInputs * (2 * kTokens + 7 * kMatrix) - 3 * 512 * kMatrix);
}

TEST_CASE("rotations beside 4-bit weights are those beside bf16") {
  Job packed = rotating_job();
  packed.quantized = {.kind = Quantization::kNf4, .is_double = true};
  CHECK(saved_bytes(packed, "adapter.activations") ==
        saved_bytes(rotating_job(), "adapter.activations"));
}

TEST_CASE("rotations that were not read are refused by name") {
  Job valid = rotating_job(8);
  valid.global_batch = 64;
  constexpr std::string_view kRule = "unsupported: adapters.kind";
  check_refused(valid,
                {{kRule, [](Job&, Plan& plan) { plan.zero = 3; }, {"oft with zero 3", "zero 0"}},
                 {"unsupported: adapters.dora",
                  [](Job& job, Plan&) {
                    job.adapters.decomposes_weights = true;
                    job.quantized.kind = Quantization::kInt8;
                  },
                  {"dora true"}},
                 {kRule,
                  [](Job& job, Plan&) { job.adapters.decomposes_weights = true; },
                  {"oft with DoRA", "lora"}},
                 {kRule, [](Job& job, Plan&) { job.adapters.dropout = 0.1; }, {"oft with dropout"}},
                 {kRule,
                  [](Job& job, Plan&) { job.quantized.kind = Quantization::kInt8; },
                  {"oft with int8 weights"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
