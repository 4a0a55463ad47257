// Kernels around the products of Hugging Face's layers under transformers' Trainer.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"
#include "tests/estimator/layer_kernels.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::transformers {
namespace {

using huggingface::adapter_elements;
using huggingface::model_elements;

Job trainer_on_h200() {
  Job job = job_on_h200();
  set_framework(job.profile, MemoryModel::kTransformers);
  return job;
}

BlockTime layer(const Job& job, const Plan& plan) {
  return layer_time(job, plan, job.model.layers.front());
}

TEST_CASE("weights of bf16 run in the kernels of DeepSpeed's layers") {
  Job job = trainer_on_h200();
  for (const bool has_head_norms : {false, true}) {
    job.model.qk_norm = has_head_norms;
    Job deepspeed = job;
    set_framework(deepspeed.profile, MemoryModel::kDeepspeed);
    const KernelBytes ours = bytes_of_layer(layer_kernels(job), &Passes::forward);
    const KernelBytes theirs = bytes_of_layer(layer_kernels(deepspeed), &Passes::forward);
    CHECK(ours.streamed == theirs.streamed);
    CHECK(ours.converted == theirs.converted);
    CHECK(ours.rearranged == theirs.rearranged);
  }
}

TEST_CASE("TF32 makes products of fp32 faster, and no others") {
  Job job = trainer_on_h200();
  Plan plan = trainer_plan(0);
  const double bf16_s = layer(job, plan).forward_s;
  plan.precision = Precision::kFp32;
  const double fp32_s = layer(job, plan).forward_s;
  job.profile.tf32 = true;
  CHECK(layer(job, plan).forward_s < fp32_s / 2);
  plan.precision = Precision::kBf16;
  CHECK(layer(job, plan).forward_s == bf16_s);
}

// In fp32: square 8, mean 4; products with the root 8 and the weight 8; the addition reads 4 and 2,
// writes 4; of five inputs of products in a layer, each cast 4 + 2, half to a norm.
TEST_CASE("autocast over fp32 weights casts every product's input by itself") {
  Job job = trainer_on_h200();
  job.profile.weights_dtype = DType::kFp32;
  const KernelBytes norm = layer_kernels(job).norm.forward;
  CHECK(norm.streamed == 12);
  CHECK(norm.converted == 8 + 8 + 10 + 2.5 * 6);
  CHECK(layer(job, trainer_plan(0)).forward_s >
        layer(trainer_on_h200(), trainer_plan(0)).forward_s);
}

// MatMul8bitLt.backward multiplies outside autocast in the type of its input, which norms in fp32
// make fp32: q, k and v, gate, up and down, but not o, whose input attention makes. The GPU does
// that outside its tensor cores.
TEST_CASE("gradients of LLM.int8's inputs are products in fp32 behind norms in fp32") {
  Job job = trainer_on_h200();
  job.adapters = adapters_on_all(8);
  job.quantized.kind = Quantization::kInt8;
  const Plan plan = trainer_plan(0);
  const double narrow_s = layer(job, plan).backward_input_s;
  job.profile.wide_ends = true;
  const double wide_s = layer(job, plan).backward_input_s;
  const ModelSpec& model = job.model;
  const std::int64_t heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
  const double flops = 2 * static_cast<double>(block_shape(job, plan).tokens * model.hidden *
                                               (heads + 3 * model.ffn));
  const GpuSpec& gpu = job.cluster.gpu;
  CHECK(wide_s - narrow_s > flops * (1 / gpu.fp32_flops_per_s - 2 / gpu.bf16_flops_per_s));
  CHECK(wide_s - narrow_s < 3 * flops / gpu.fp32_flops_per_s);
}

// Two norms of a layer: an addition of 3 * 2 bytes each, products of 2 * 2. Four: the same two
// additions, products in fp32 of 8.
TEST_CASE("Gemma's norms multiply in fp32, and two of four are followed by no addition") {
  Job job = trainer_on_h200();
  const Passes llama = layer_kernels(job).norm;
  job.model.family = "gemma2";
  const Passes two = layer_kernels(job).norm;
  CHECK(two.forward.streamed == llama.forward.streamed + 8);
  CHECK(two.forward.converted == llama.forward.converted - 4);
  job.model.norms_per_layer = 4;
  CHECK(layer_kernels(job).norm.forward.streamed == two.forward.streamed - 3);
}

TEST_CASE("FSDP2 computes in bf16, whatever the type of the weights") {
  Job job = trainer_on_h200();
  job.cluster.gpus_per_node = 8;
  const BlockTime half = layer(job, trainer_plan(3));
  job.profile.weights_dtype = DType::kFp32;
  CHECK(layer(job, trainer_plan(3)).forward_s == half.forward_s);
}

TEST_CASE("frozen weights have no gradients, adapters have small ones") {
  Job job = trainer_on_h200();
  const BlockTime whole = layer(job, trainer_plan(0));
  job.adapters.rank = 16;
  const BlockTime frozen = layer(job, trainer_plan(0));
  CHECK(frozen.backward_weight_s == 0);
  CHECK(frozen.forward_s == whole.forward_s);
  job.adapters = adapters_on_all(16);
  const BlockTime adapted = layer(job, trainer_plan(0));
  CHECK(adapted.forward_s > frozen.forward_s);
  CHECK(adapted.backward_weight_s > 0);
  CHECK(adapted.backward_weight_s < whole.backward_weight_s / 4);
}

// 218,103,808 elements of a layer of Llama-3-8B: half a byte and 4 / 64 read, 2 written.
TEST_CASE("4-bit weights are unpacked once in either direction") {
  Job job = trainer_on_h200();
  job.adapters.rank = 16;
  const BlockTime frozen = layer(job, trainer_plan(0));
  job.quantized.kind = Quantization::kNf4;
  const BlockTime packed = layer(job, trainer_plan(0));
  const double unpacked_s =
      elementwise_s(job.cluster.gpu, {.fused = 218'103'808 * (0.5 + 4 / 64. + 2)});
  CHECK(packed.forward_s - frozen.forward_s == doctest::Approx(unpacked_s).epsilon(0.01));
  CHECK(packed.backward_input_s - frozen.backward_input_s ==
        doctest::Approx(unpacked_s).epsilon(0.01));
}

TEST_CASE("a model's elements are those of its tensors") {
  Job job = trainer_on_h200();
  for (const bool is_small : {false, true}) {
    job.model.qk_norm = job.model.qkv_bias = job.model.tied_embeddings = is_small;
    job.model.attention_output_bias = job.model.ffn_bias = is_small;
    job.model.norms_per_layer = is_small ? 4 : 2;
    CHECK(model_elements(job.model) == count_parameters(job.model));
  }
}

// Rank 16 on all of Llama-3-8B's layers: q and o 8192, k and v 5120, gate, up and down 18,432 each.
TEST_CASE("the parameters of adapters are counted as peft prints them") {
  Job job = trainer_on_h200();
  job.adapters = adapters_on_all(16);
  CHECK(adapter_elements(job) == 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18'432));
}

}  // namespace
}  // namespace shardplan::transformers
