// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/deepspeed/kernels.h"

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/host.h"
#include "estimator/frameworks/deepspeed/liger.h"
#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/frameworks/pieces/huggingface/adapter_kernels.h"
#include "estimator/frameworks/pieces/huggingface/expert_kernels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/kernels.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface_kernels.h"
#include "estimator/plan/number.h"

namespace shardplan::deepspeed {
namespace {

// Hugging Face's layers (huggingface_kernels) with Liger's kernels, one each (ops/rms_norm.py,
// rope.py, swiglu.py): norm 2, backward 3; rotary embedding in place 2; SwiGLU 3, backward 5, in
// place. Additions as above: of residuals 3, of gradients 3, and the sums of input gradients 4.5.
LayerKernels liger_kernels(double e) {
  return {.norm = {.forward = {.fused = 2 * e, .streamed = 3 * e},
                   .backward = {.fused = 3 * e, .streamed = 7.5 * e}},
          .rotary = {.forward = {.fused = 2 * e}, .backward = {.fused = 2 * e}},
          .gated = {.forward = {.fused = 3 * e}, .backward = {.fused = 5 * e}}};
}

// Norms of q and of k, beside the rotary embedding. Those that Liger leaves as they are (up to
// 0.8.4) find their gradients where tokens lie before heads: backward is as of huggingface_kernels'
// norm.
Passes head_norm(const Job& job, double e) {
  if (job.profile.liger_kernel == LigerKernel::kOn) {
    return {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}};
  }
  if (uses_liger(job)) {
    return {.forward = huggingface_head_norm(e).forward,
            .backward = {.streamed = 52 + 4 * e, .converted = 4 * e + 16}};
  }
  return huggingface_head_norm(e);
}

// A norm of Gemma's models, or of frozen weights, in place of Llama's that is trained.
void adjust_norm(Passes& norm, const Job& job, double e) {
  const bool is_gemma = huggingface::class_of(job.model).norm == huggingface::NormKind::kGemma;
  norm = is_gemma ? huggingface_gemma_norm(norm, e) : norm;
  norm = job.model.norms_per_layer > 2 ? huggingface_four_norms(norm, e) : norm;
  if (job.adapters.rank > 0) {
    norm = huggingface_frozen_norm(norm, is_gemma ? number(bytes_of(DType::kFp32)) : e);
  }
}

LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  LayerKernels kernels = uses_liger(job) ? liger_kernels(e) : huggingface_kernels(e);
  if (job.model.qk_norm) {
    kernels.rotary = kernels.rotary + head_norm(job, e);
  }
  if (!uses_liger(job)) {
    adjust_norm(kernels.norm, job, e);
  }
  return kernels;
}

// Liger's loss, per element of the head's weight: its gradient is filled with zeros and, of several
// microbatches, multiplied by the loss's (ops/fused_linear_cross_entropy.py). The product of every
// chunk reads what it adds to; up to 0.8.2 it becomes fp32 and is added.
KernelBytes liger_head_kernels(const Job& job, const Plan& plan, std::int64_t tokens) {
  const double e = activation_element_bytes(plan);
  const double chunks = number(div_ceil(tokens, liger_chunk_tokens(tokens, job.model)));
  const bool adds_in_fp32 = job.profile.liger_kernel == LigerKernel::kThrough082;
  const double scaled = num_microbatches(job, plan) > 1 ? 2 * e : 0;
  return {.fused = e + scaled + (adds_in_fp32 ? 0 : chunks * e),
          .converted = adds_in_fp32 ? chunks * (3 * e + 8) : 0};
}

// Hugging Face's loss is PyTorch's; engines of DeepSpeed that divide the bf16 gradient
// (_backward_prologue_per_tensor) 4. Liger's reads bf16 logits twice and writes their gradient
// (ops/cross_entropy.py).
LossKernels loss_kernels(const Job& job, const Plan& plan, std::int64_t tokens) {
  if (uses_liger(job) && job.profile.objective == Objective::kNextToken) {
    return {.logit = {.forward = {.fused = 6}},
            .tokens = liger_chunk_tokens(tokens, job.model),
            .sums_weight_gradient = true,
            .has_weight_kernels = true,
            .weight = liger_head_kernels(job, plan, tokens)};
  }
  const double divided = job.profile.divides_logits_gradient ? 4 : 0;
  return {.logit = {.forward = kEagerLoss.forward,
                    .backward = kEagerLoss.backward + KernelBytes{.streamed = divided}},
          .tokens = tokens};
}

// ZeRO-1, as no ZeRO, adds gradients to those of the microbatches before; ZeRO-2 and 3 take every
// one through the bucket.
KernelBytes weight_gradient(const Job&, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  return plan.zero <= 1 ? KernelBytes{.streamed = 3 * e} : bucket_kernels(e);
}

}  // namespace

constinit const BlockKernels kKernels = {
    .host = kHost,
    .layer = layer_kernels,
    .weight_gradient = weight_gradient,
    .trains_weights = [](const Job& job) { return job.adapters.rank == 0; },
    .add_beside_products = huggingface::add_beside_products,
    .rounds_to_tf32 = [](const Job& job) { return job.profile.tf32; },
    .attention_kernels = asked_attention_backend,
    .add_mixer = huggingface::add_mixer,
    .casts_router = [](const Job& job) { return huggingface::casts_router(job.model); },
    .expert_exchange = huggingface::expert_exchange,
    .forward_passes = huggingface::passes_without_graph,
    .head_outputs = huggingface::head_outputs,
    .table_gradient =
        [](const Job& job, const Plan& plan) {
          return job.adapters.rank > 0 ? TableGradientKernels{} : touched_table_gradient(plan);
        },
    .loss = loss_kernels};

}  // namespace shardplan::deepspeed
