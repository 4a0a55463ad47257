// Every number counts how often one element is read or written; e is its size. A product of bytes
// and rates was held against the kernels of one layer of Llama-3-8B on H200
// (data/measured/torch_kernels_h200.json).
#include "estimator/time/elementwise.h"
#include "estimator/plan/expert_routing.h"

#include <algorithm>
#include <stdexcept>

#include "estimator/frameworks/deepspeed/liger.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/plan/number.h"
#include "estimator/time/efficiency.h"
#include "estimator/time/kernel_time.h"

namespace shardplan {
namespace {

double element_bytes(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? 4 : 2;
}

// Residual addition and norm in one kernel: two read, two written. Rotary embedding in place.
LayerKernels native_kernels(double e) {
  return {.norm = {.forward = {.fused = 4 * e}, .backward = {.fused = 4 * e}},
          .rotary = {.forward = {.fused = 2 * e}, .backward = {.fused = 2 * e}},
          .gated = {.forward = {.fused = 3 * e}, .backward = {.fused = 5 * e}},
          .plain = {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}}};
}

// Megatron-core's layers with Transformer Engine or Apex. Norm 2, residual addition 3; backward 3
// and the addition of gradients 3. Attention takes packed queries, keys and values as they are
// without a rotary embedding. With one and grouped queries these are copied out of the packed
// projection (core/transformer/attention.py, get_query_key_value_tensors), values always
// (Transformer Engine, get_qkv_layout); backward the three gradients are put together. Backward of
// the compiled SwiGLU either half of its cat reads output's gradient and gate
// (core/fusions/fused_bias_swiglu.py); unfused it writes and reads silu(gate) as well. Experts'
// probabilities multiply it; theirs is a gradient of 3 of its own (weighted_swiglu_back).
LayerKernels engine_kernels(const Job& job, double e) {
  const ModelSpec& model = job.model;
  LayerKernels kernels = native_kernels(e);
  kernels.norm = {.forward = {.fused = 5 * e}, .backward = {.fused = 6 * e}};
  kernels.rotary = {};
  if (model.learned_positions == 0) {
    const double value = static_cast<double>(model.num_kv_heads) /
                         static_cast<double>(std::max<std::int64_t>(1, model.num_heads));
    const double copied = (model.num_kv_heads < model.num_heads ? 1 : 0) + value;
    const KernelBytes turned = at_share(2 * e, kEngineRotaryShare);
    kernels.rotary = {.forward = turned, .backward = turned};
    kernels.copies = {.forward = {.rearranged = 2 * e * copied},
                      .backward = {.fused = 2 * e * (1 + 2 * value)}};
  }
  kernels.gated = job.profile.swiglu == SwigluKind::kUnfused
                      ? Passes{.forward = {.fused = 5 * e}, .backward = {.fused = 8 * e}}
                      : Passes{.forward = {.fused = 3 * e}, .backward = {.streamed = 7 * e}};
  kernels.weighted = {.backward = {.fused = 3 * e}};
  return kernels;
}

// torchtitan's model.py, one PyTorch kernel an operator. Forward: norm 2, residual addition 3;
// rotary embedding on complex numbers: to fp32, product, back; silu 2, product 3. Backward: norm 5
// (two kernels, for input and weight), residual 3, and the sums of input gradients, of q, k and v
// 6 and of w1 and w3 3; product 6, silu 3.
LayerKernels titan_kernels(double e) {
  return {.norm = {.forward = {.streamed = 5 * e}, .backward = {.streamed = 12.5 * e}},
          .rotary = {.forward = {.streamed = e + 4, .rearranged = e + 12},
                     .backward = {.streamed = 2 * e + 16}},
          .gated = {.forward = {.streamed = 5 * e}, .backward = {.streamed = 9 * e}},
          .plain = {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}}};
}

// models/deepseek_v3/model/model.py, Attention: the turned parts of queries to fp32, their product,
// and back; queries and keys put together of two parts; the norms of latent queries and keys.
// Backward the same way, keys' and values' gradients put together as the projection's output lies.
// As bytes an element of queries, and of keys without rotation and values.
Passes latent_rotation(const ModelSpec& model, double e) {
  const MlaSpec& mla = model.mla;
  const double heads = number(model.num_heads);
  const double turned = heads * number(mla.qk_rope_head_dim);
  const double query = heads * number(mla.qk_head_dim());
  const double key_value = heads * number(mla.qk_nope_head_dim + mla.v_head_dim);
  const double latent = number(mla.q_lora_rank + mla.kv_lora_rank);
  const KernelBytes forward{.streamed = turned * (e + 4) + 2 * e * latent,
                            .rearranged = turned * (e + 12) + 2 * e * 2 * query};
  const KernelBytes backward{.streamed = turned * 20 + 5 * e * latent + e * query,
                             .rearranged = 2 * e * (query + key_value)};
  const double width = query + key_value;
  return {.forward = 1 / width * forward, .backward = 1 / width * backward};
}

// models/qwen3/model/model.py: the norm of queries and keys 2, backward 5; under autocast, whose
// weights are fp32, as operations on fp32 (ATen rms_norm_composite): casts 6 and 6, square 8, mean
// 4, products 8 and 8; backward casts, products of the output's gradient 24, sums 8, products of
// the input's 24, spread mean 4, power, its double and their product 28, sum 12. Rotation: products
// with cosine and sine 4, negation and cat of the halves 3, sum 3; backward products 4, negation 1,
// the halves' gradients in zeros 4, sums 6. Callers pass twice where there are norms.
Passes rotation_by_halves(double e, bool is_autocast) {
  Passes passes{.forward = {.streamed = 7 * e / 2, .rearranged = 3 * e / 2},
                .backward = {.streamed = 10 * e / 2, .rearranged = 5 * e / 2}};
  const Passes norm =
      is_autocast ? Passes{.forward = {.streamed = 28. / 2, .converted = 12. / 2},
                           .backward = {.streamed = 100. / 2, .converted = 12. / 2}}
                  : Passes{.forward = {.streamed = 2 * e / 2}, .backward = {.streamed = 5 * e / 2}};
  passes.forward = passes.forward + norm.forward;
  passes.backward = passes.backward + norm.backward;
  return passes;
}

// Compiled, norm and rotation are one kernel, 2; backward the rotation to fp32 e + 4, the norm's
// 4 + 2e, and for its weight 4 + e. Callers pass twice.
Passes compiled_rotation_by_halves(double e) {
  return {.forward = {.streamed = 2 * e / 2}, .backward = {.streamed = (12 + 4 * e) / 2}};
}

// The same block compiled: norms take the additions before them along, silu and product are one
// kernel; the complex product stays PyTorch's own.
LayerKernels compiled_titan_kernels(double e) {
  return {.norm = {.forward = {.streamed = 4.5 * e}, .backward = {.streamed = 7 * e}},
          .rotary = {.forward = {.streamed = 2 * e + 8, .converted = 8},
                     .backward = {.streamed = 2 * e + 16}},
          .gated = {.forward = {.streamed = 3 * e}, .backward = {.streamed = 5 * e}},
          .plain = {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}}};
}

// Megatron-core's local layers. Norm and addition as torchtitan's. rope_utils.py: products with
// cosine and sine 4, negation 1 and cat 2 of the halves, addition 3, cat with what is not turned 2;
// backward the same but for the last. Queries are copied out of the packed projection, and their
// gradients back into it. SwiGLU is compiled (fused_bias_swiglu.py).
LayerKernels local_kernels(double e) {
  return {.norm = {.forward = {.streamed = 5 * e}, .backward = {.streamed = 8 * e}},
          .rotary = {.forward = {.streamed = 5 * e, .rearranged = 7 * e},
                     .backward = {.streamed = 4 * e, .rearranged = 7 * e}},
          .copies = {.forward = {.rearranged = 2 * e}, .backward = {.streamed = 3 * e}},
          .gated = {.forward = {.fused = 3 * e}, .backward = {.streamed = 5 * e}},
          .plain = {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}}};
}

// q_layernorm and k_layernorm of the local layers, torch.nn.RMSNorm: forward 2, backward 5 (two
// kernels, for input and weight). Keys, and queries that were not copied out of the packed
// projection, are made contiguous in front of either (layer_norm_kernel.cu).
Passes local_head_norm(const ModelSpec& model, double e) {
  const double heads = static_cast<double>(model.num_heads);
  const double keys = static_cast<double>(model.num_kv_heads);
  const double strided = model.num_kv_heads < model.num_heads ? keys / (heads + keys) : 1;
  return {.forward = {.streamed = 2 * e, .rearranged = 2 * e * strided},
          .backward = {.streamed = 5 * e, .rearranged = 2 * e * strided}};
}

// Qwen3RMSNorm on heads (modeling_qwen3.py), operator by operator: forward as huggingface_kernels'
// norm. Backward the gradient lies as the rotary embedding's backward left it, heads before tokens,
// what was saved with tokens before heads: kernels that read both are products with the normed
// value 3 in bf16, with the root 2, with the input 3 and the sum of both gradients 3 in fp32.
Passes huggingface_head_norm(double e) {
  return {
      .forward = {.streamed = 12, .converted = 4 * e + 16},
      .backward = {.streamed = 36 + e, .converted = 4 * e + 8, .rearranged = 3 * e + 8 + 12 + 12}};
}

// Megatron-core's latent attention without fused kernels (core_v0.16.1
// core/models/common/embeddings/rope_utils.py, transformer/multi_latent_attention.py). Turned parts
// of queries: halves out of every second element 2, negation 1 of one half and read of the other,
// cat 2, products 2 and 2, sum 3, cat with nothing 2; queries and keys put together of two parts
// and values made contiguous, 2. Backward products 2 and 2, negation 1, cat 2, sum 3, and zeros
// with every second element 2 and 2, sum 3 and the heads' sum of keys 1; gradients of both
// projections put together, 2.
Passes unfused_latent_rotation(const ModelSpec& model, double e) {
  const MlaSpec& mla = model.mla;
  const double turned = number(mla.qk_rope_head_dim);
  const double query = number(mla.qk_head_dim());
  const double value = number(mla.v_head_dim);
  const double key_value = number(mla.qk_nope_head_dim) + value;
  const double width = query + key_value;
  return {.forward = {.streamed = 8 * e * turned / width,
                      .rearranged = (6 * e * turned + 2 * e * (2 * query + value)) / width},
          .backward = {.streamed = 10 * e * turned / width,
                       .rearranged = (8 * e * turned + 2 * e * width) / width}};
}

// Without fused kernels Transformer Engine's layers turn queries and keys as the local ones do.
Passes rotation(const Job& job, const Passes& fused, double e) {
  const bool is_fused = job.profile.memory_model != MemoryModel::kMegatron ||
                        job.profile.rope_fusion || job.model.learned_positions > 0;
  return is_fused             ? fused
         : job.model.is_mla() ? unfused_latent_rotation(job.model, e)
                              : local_kernels(e).rotary;
}

// Norms of q and of k, beside the rotary embedding. Those that Liger leaves as they are (up to
// 0.8.4) find their gradients where tokens lie before heads: backward is as of huggingface_kernels'
// norm. Unless counted by kernel they pass over the same elements as that once more.
Passes head_norm(const Job& job, const Passes& rotary, double e) {
  if (job.profile.liger_kernel == LigerKernel::kOn) {
    return {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}};
  }
  if (uses_liger(job)) {
    return {.forward = huggingface_head_norm(e).forward,
            .backward = {.streamed = 52 + 4 * e, .converted = 4 * e + 16}};
  }
  switch (job.profile.memory_model) {
    case MemoryModel::kMegatronLocal: return local_head_norm(job.model, e);
    case MemoryModel::kDeepspeed: return huggingface_head_norm(e);
    default: return rotary;
  }
}

// Hugging Face's modeling_llama.py, as DeepSpeed runs it: one PyTorch kernel an operator. Norm: to
// fp32, square, mean, product with the root, back, product with the weight; backward the gradients
// of all of them, two in fp32 added up. Rotary embedding: products with cosine and sine, negation
// and cat of the halves, addition; backward zeros around either half. Additions
// and SwiGLU as torchtitan's.
LayerKernels huggingface_kernels(double e) {
  LayerKernels kernels = titan_kernels(e);
  kernels.norm = {.forward = {.streamed = 12 + 3 * e, .converted = 2 * e + 8 + 8 + 2 * e},
                  .backward = {.streamed = 52 + 11.5 * e, .converted = 2 * e + 8 + 8 + 2 * e}};
  kernels.rotary = {.forward = {.streamed = 3 * e, .rearranged = 7 * e},
                    .backward = {.streamed = 6 * e, .rearranged = 9 * e}};
  return kernels;
}

// The same with Liger's kernels, one each (ops/rms_norm.py, rope.py, swiglu.py): norm 2, backward
// 3; rotary embedding in place 2; SwiGLU 3, backward 5, in place. Additions as above: of residuals
// 3, of gradients 3, and the sums of input gradients 4.5.
LayerKernels liger_kernels(double e) {
  return {.norm = {.forward = {.fused = 2 * e, .streamed = 3 * e},
                   .backward = {.fused = 3 * e, .streamed = 7.5 * e}},
          .rotary = {.forward = {.fused = 2 * e}, .backward = {.fused = 2 * e}},
          .gated = {.forward = {.fused = 3 * e}, .backward = {.fused = 5 * e}}};
}

// nanotron's models/llama.py with flash-attn's norm and rotary kernels in Triton. Norm 2, residual
// addition 3; backward 3 and the addition of gradients 3. Queries, keys and values made contiguous,
// keys and values put together and permuted, the projection's input transposed where a microbatch
// has several sequences; backward keys' and values' gradients joined, all three stacked (as many
// key-value heads as heads) and copied into the packed product's. Silu reads the strided half of
// gate and up 2, product 3; backward two products 3 and 3, silu 3, halves put together 4.
LayerKernels nanotron_kernels(const Job& job, const Plan& plan, double e) {
  const double heads = static_cast<double>(job.model.num_heads);
  const double key_values = 2 * static_cast<double>(job.model.num_kv_heads) / heads;
  const bool is_mha = job.model.num_kv_heads == job.model.num_heads;
  const double transposed = plan.micro_batch > 1 ? 2 * e : 0;
  const double packed = 2 * e * (1 + key_values);
  return {.norm = {.forward = {.fused = 2 * e, .streamed = 3 * e},
                   .backward = {.streamed = 3 * e, .rearranged = 3 * e}},
          .rotary = {.forward = {.streamed = 2 * e}, .backward = {.streamed = 2 * e}},
          .copies = {.forward = {.rearranged = packed + 4 * e * key_values + transposed},
                     .backward = {.rearranged =
                                      (is_mha ? 2 : 1) * packed + 2 * e * key_values + transposed}},
          .gated = {.forward = {.converted = 3 * e, .rearranged = 2 * e},
                    .backward = {.fused = 7 * e, .converted = 3 * e, .rearranged = 3 * e}},
          .plain = {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}},
          .light_attention = true};
}

// PyTorch's cross_entropy of logits cast to fp32.
constexpr Passes kEagerLoss{.forward = {.streamed = 12, .converted = 6},
                            .backward = {.fused = 10, .streamed = 12}};

// A loss kernel by kernel over parts of the vocabulary, the gradient in place: cast 6, subtraction
// 8, division 8; maximum 4, exponential 8 and sum 4 of fp32, which run at another rate in nanotron
// than in Megatron-core; backward gradient 8, cast 6 (core/tensor_parallel/cross_entropy.py;
// nanotron's functional.py, _ShardedCrossEntropy).
constexpr double kLossReductions = 4 + 8 + 4;
constexpr Passes kCast{.forward = {.converted = 6}, .backward = {.fused = 6}};
Passes unfused_loss_of_fp32(const KernelBytes& reductions) {
  return {.forward = KernelBytes{.converted = 8 + 8} + reductions, .backward = {.converted = 8}};
}
Passes unfused_loss(const KernelBytes& reductions) {
  const Passes loss = unfused_loss_of_fp32(reductions);
  return {.forward = kCast.forward + loss.forward, .backward = kCast.backward + loss.backward};
}

// Halves of what both directions read and write together.
Passes in_halves(double bytes) {
  return {.forward = {.fused = bytes / 2}, .backward = {.fused = bytes / 2}};
}

}  // namespace

KernelBytes deepspeed_bucket_kernels(double element_bytes) {
  return {.fused = 6 * element_bytes};
}

KernelBytes operator+(const KernelBytes& a, const KernelBytes& b) {
  return {.fused = a.fused + b.fused,
          .streamed = a.streamed + b.streamed,
          .converted = a.converted + b.converted,
          .rearranged = a.rearranged + b.rearranged};
}

KernelBytes operator*(double count, const KernelBytes& bytes) {
  return {.fused = count * bytes.fused,
          .streamed = count * bytes.streamed,
          .converted = count * bytes.converted,
          .rearranged = count * bytes.rearranged};
}

KernelBytes at_share(double bytes, const EfficiencyConstant& share) {
  return {.fused = bytes * kFusedShare.value / share.value};
}

double elementwise_s(const GpuSpec& gpu, const KernelBytes& bytes) {
  const double as_fused = bytes.fused + (bytes.streamed / kStreamedShare.value +
                                         bytes.converted / kConvertedShare.value +
                                         bytes.rearranged / kRearrangedShare.value) *
                                            kFusedShare.value;
  return memory_bound_s(gpu, as_fused);
}

namespace {

LayerKernels kernels_without_head_norms(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const double e = element_bytes(plan);
  switch (profile.memory_model) {
    case MemoryModel::kNative: return native_kernels(e);
    case MemoryModel::kTorchtitan: {
      LayerKernels kernels =
          profile.compiles_layers() ? compiled_titan_kernels(e) : titan_kernels(e);
      if (job.model.is_mla()) {
        kernels.rotary = latent_rotation(job.model, e);
      }
      if (job.model.qk_norm) {
        kernels.rotary = profile.compiles_layers() ? compiled_rotation_by_halves(e)
                                                   : rotation_by_halves(e, plan.zero == 0);
      }
      return kernels;
    }
    case MemoryModel::kMegatronLocal: return local_kernels(e);
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatron: return engine_kernels(job, e);
    case MemoryModel::kNanotron: return nanotron_kernels(job, plan, e);
    case MemoryModel::kDeepspeed:
      return uses_liger(job) ? liger_kernels(e) : huggingface_kernels(e);
  }
  throw std::logic_error("layer_kernels: unknown memory model");
}

}  // namespace

LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  LayerKernels kernels = kernels_without_head_norms(job, plan);
  const double e = element_bytes(plan);
  const Passes norm = job.model.qk_norm ? head_norm(job, kernels.rotary, e) : Passes{};
  const Passes turned = rotation(job, kernels.rotary, e);
  kernels.rotary = {.forward = turned.forward + norm.forward,
                    .backward = turned.backward + norm.backward};
  return kernels;
}

// One pass over bf16 logits with the gradient in place 2 + 2 + 2; Transformer Engine's: maximum and
// sum 2, gradient in place 4, scaled by the loss's own 4 (pytorch/triton/cross_entropy.py); a
// separate fp32 gradient 2 + 2 + 4 + 4 + 2; native fused: cast 6, maximum 4, exponentials and sum
// 8, division 8, gradient 8, cast 6; unfused: cast 6, maximum 4, subtraction 8, exponential 8, sum
// 4, division 8, gradient 8, cast 6. torchtitan: cast 6, log-softmax 12 (its input twice); backward
// zeros 4, gradient 12, cast 6; compiled: bf16 logits read twice; backward read and written.
// Hugging Face's as torchtitan's eager one; engines of DeepSpeed that divide the bf16 gradient
// (_backward_prologue_per_tensor) 4. Zeros and casts to bf16 are as fast as fused kernels. Liger's
// reads bf16 logits twice and writes their gradient (ops/cross_entropy.py).
Passes loss_kernels(const Job& job) {
  const FrameworkProfile& profile = job.profile;
  if (profile.memory_model == MemoryModel::kTorchtitan) {
    return profile.compiles_loss() ? Passes{.forward = {.streamed = 4}, .backward = {.streamed = 4}}
                                   : kEagerLoss;
  }
  if (uses_liger(job)) {
    return {.forward = {.fused = 6}};
  }
  if (profile.memory_model == MemoryModel::kDeepspeed) {
    const double divided = profile.divides_logits_gradient ? 4 : 0;
    return {.forward = kEagerLoss.forward,
            .backward = kEagerLoss.backward + KernelBytes{.streamed = divided}};
  }
  if (profile.memory_model == MemoryModel::kMegatronLocal) {
    return unfused_loss({.streamed = kLossReductions});
  }
  if (profile.memory_model == MemoryModel::kNanotron) {
    return unfused_loss({.fused = kLossReductions});
  }
  switch (profile.cross_entropy) {
    case CrossEntropyKind::kChunked: return in_halves(6);
    case CrossEntropyKind::kTeFused:
      return {.forward = {.fused = 4, .converted = 2}, .backward = {.fused = 4}};
    case CrossEntropyKind::kTeFusedSeparateGrad: return in_halves(14);
    case CrossEntropyKind::kNativeFused: return in_halves(40);
    case CrossEntropyKind::kUnfused: return unfused_loss({.streamed = kLossReductions});
  }
  throw std::logic_error("loss_kernels: unknown cross-entropy");
}

Passes cast_kernels() {
  return kCast;
}

Passes loss_of_cast_kernels() {
  return unfused_loss_of_fp32({.fused = kLossReductions});
}

KernelBytes liger_head_kernels(const Job& job, const Plan& plan) {
  const double e = element_bytes(plan);
  const std::int64_t tokens = job.sequence_length * plan.micro_batch;
  const double chunks = number(div_ceil(tokens, liger_chunk_tokens(tokens, job.model)));
  const bool adds_in_fp32 = job.profile.liger_kernel == LigerKernel::kThrough082;
  const double scaled = num_microbatches(job, plan) > 1 ? 2 * e : 0;
  return {.fused = e + scaled + (adds_in_fp32 ? 0 : chunks * e),
          .converted = adds_in_fp32 ? chunks * (3 * e + 8) : 0};
}

std::int64_t accumulated_microbatches(const Job& job, const Plan& plan) {
  return plan.zero == 3 && plan.pp == 1 ? 1 : num_microbatches(job, plan);
}

namespace {

// torchtitan's gradients of later microbatches, a weight. Under FSDP those of a pipeline stay whole
// until the last one: the first is cast to the accumulator, others are added to it (FSDP2's
// fsdp_param.py, to_accumulated_grad_if_needed and accumulate_unsharded_grad_if_needed). On one GPU
// autograd adds them to the fp32 ones that it has.
KernelBytes titan_accumulation(const Job& job, const Plan& plan) {
  const double e = element_bytes(plan);
  const double grad = static_cast<double>(bytes_of(plan.grad_dtype));
  const double microbatches = number(accumulated_microbatches(job, plan));
  const double later = (microbatches - 1) / microbatches;
  if (plan.zero != 3) {
    return {.streamed = later * 3 * grad};
  }
  return later > 0 ? KernelBytes{.converted = (1 - later) * (e + grad) + later * (e + 2 * grad)}
                   : KernelBytes{};
}

}  // namespace

// Megatron's is PyTorch's: zeros for the whole table, sums of tokens in parts of fp32 (written,
// read and written) and the hook's addition to the main gradient (core/models/common/embeddings,
// core/distributed/distributed_data_parallel.py). Of the other frameworks only what tokens touch
// is counted.
TableGradientKernels table_gradient_kernels(const Job& job, const Plan& plan) {
  const double e = element_bytes(plan);
  const double grad = static_cast<double>(bytes_of(plan.grad_dtype));
  switch (job.profile.memory_model) {
    case MemoryModel::kMegatron:
    case MemoryModel::kMegatronLocal:
    case MemoryModel::kFujii2024:
      return {.token = at_share(2 * e + 8, kEmbeddingSumShare),
              .table = {.streamed = e, .converted = e + 2 * grad}};
    case MemoryModel::kTorchtitan:
      return {.token = {.fused = e + 2 * grad}, .table = titan_accumulation(job, plan)};
    default: return {.token = {.fused = e + 2 * grad}};
  }
}

namespace {

// torchtitan's models/moe (moe.py, utils.py), one PyTorch kernel an operator; halves of a bf16
// element's two bytes, w halves an element. Forward: rows picked 2w, a row of zeros joined 2w,
// padded 2w, put back 2w, zeros w, put in order 2w, weighted sum. Backward: its gradient, picked
// 2w, zeros and slice 3w, picked 2w, inputs' gradients added 3w, zeros and sorted addition 3w for
// the padding and 2w + w/n for tokens. Under FSDP the sum runs in fp32, cast 3 on the way there and
// back; under autocast rows are fp32, cast to bf16 for each of two products and the sum and back
// behind the experts, 3 each.
Passes titan_permutation_kernels(bool is_autocast, double tokens) {
  const double w = is_autocast ? 2 : 1;
  const double sum = is_autocast ? 1 : 2;
  const double casts = is_autocast ? 4 * 3 : 3;
  return {.forward = {.streamed = (2 + 2 + 2 + 1) * w + sum * (1 + tokens),
                      .converted = casts,
                      .rearranged = (2 + 2) * w},
          .backward =
              KernelBytes{.streamed = (2 + 3 + 2 + 3 + 1 + tokens) * w + sum, .converted = casts} +
              at_share((2 + 1 + tokens) * w, kIndexAddShare)};
}

// Bytes that sort rows by expert behind their way and unsort them: none where a rank has one expert
// (core_v0.16.1 core/transformer/moe/token_dispatcher.py, num_local_experts). Rows of experts with
// a capacity lie in chunks of one size, whose dimensions PyTorch swaps (drop_and_pad).
KernelBytes sorting_kernels(const Job& job, const Plan& plan) {
  constexpr double kBytes = 4;
  if (div_ceil(job.model.moe.num_experts, plan.ep) == 1) {
    return {};
  }
  return job.profile.moe_capacity_factor > 0 ? at_share(kBytes, kChunkCopyShare)
                                             : KernelBytes{.fused = kBytes};
}

}  // namespace

// Four times read and written: by the permutation and the sort behind the exchange, and on the way
// back. Megatron's unfused permutation adds the rows up with atomics, on the way back and in
// backward (core_v0.16.1 core/transformer/moe/moe_utils.py, unpermute, and index_select's
// gradient). Our own trainer writes them where they belong and adds up what comes back, with
// nothing between (validator/lower/moe.cpp): rows are written once and read once, tokens likewise.
Passes permutation_kernels(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const double tokens = 1 / static_cast<double>(job.model.moe.topk);
  if (profile.memory_model == MemoryModel::kTorchtitan) {
    return titan_permutation_kernels(job.cluster.world_size() == 1, tokens);
  }
  if (profile.memory_model == MemoryModel::kNative) {
    const KernelBytes once = {.fused = 2 * (1 + tokens)};
    return {.forward = once, .backward = once};
  }
  // Tokens that go once are permuted behind their way, alone.
  const bool once = sends_tokens_once(profile);
  const KernelBytes sorting = once ? KernelBytes{} : sorting_kernels(job, plan);
  if (profile.moe_permute_fusion) {
    const KernelBytes moved = KernelBytes{.fused = 4} + sorting;
    return {.forward = moved, .backward = moved};
  }
  const double ends = once ? 0.5 : 1;
  const KernelBytes moved = KernelBytes{.fused = once ? 3 + tokens / 2 : 2 + tokens} + sorting;
  return {.forward = moved + KernelBytes{.rearranged = 3 * ends},
          .backward = moved + at_share(3 * ends, kIndexAddShare)};
}

// FSDP2 takes gradients from where products have written them (sharding_time.h), the only ones or
// the sum of a pipeline's; without it autocast turns them into fp32. DeepSpeed's ZeRO-1 adds to
// those of the microbatches before; ZeRO-2 and 3 take every one through the bucket. Megatron-FSDP
// copies them into the bucket that is reduced (megatron_fsdp.py, _grad_acc).
KernelBytes weight_gradient_kernels(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const double e = element_bytes(plan);
  const double grad = static_cast<double>(bytes_of(plan.grad_dtype));
  if (fuses_weight_gradients(job, plan)) {
    return {};
  }
  if (profile.memory_model == MemoryModel::kTorchtitan) {
    const KernelBytes cast = plan.zero == 3 ? KernelBytes{} : KernelBytes{.converted = e + grad};
    return cast + titan_accumulation(job, plan);
  }
  if (profile.memory_model == MemoryModel::kDeepspeed) {
    return plan.zero == 1 ? KernelBytes{.streamed = 3 * e} : deepspeed_bucket_kernels(e);
  }
  if (is_megatron_fsdp(job, plan)) {
    return {.converted = e + grad};
  }
  return profile.memory_model == MemoryModel::kNative ? KernelBytes{.fused = e + 2 * grad}
                                                      : KernelBytes{.converted = e + 2 * grad};
}

}  // namespace shardplan
