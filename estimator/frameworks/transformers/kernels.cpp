// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/transformers/kernels.h"

#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/frameworks/pieces/huggingface/adapter_kernels.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/pieces/huggingface_kernels.h"
#include "estimator/frameworks/transformers/host.h"
#include "estimator/plan/number.h"

namespace shardplan::transformers {
namespace {

using huggingface::add_beside_products;
using huggingface::autograd_element_bytes;
using huggingface::casts_weights;
using huggingface::class_of;
using huggingface::has_wide_stream;
using huggingface::NormKind;
using huggingface::RotaryKind;
using huggingface::RouterKind;
using huggingface::uses_autocast;

constexpr double kHalf = 2;    // bytes of bf16
constexpr double kSingle = 4;  // of fp32
constexpr double kCast = kHalf + kSingle;

// A norm of the fp32 residual stream under autocast: no casts around it, but one of the input of
// each product that follows, 3 and 2 in a layer; the addition reads bf16 beside fp32. Backward the
// casts of those inputs' gradients and their sums, 3, and that of the residual's gradient to bf16.
Passes wide_norm() {
  constexpr double kInputs = (3 + 2) / 2.;
  return {
      .forward = {.streamed = 8 + 4, .converted = 8 + 8 + 2 * kSingle + kHalf + kInputs * kCast},
      .backward = {.streamed = 52 + 4 * kSingle + 3 * kSingle + 3 * kSingle * 3 / 2,
                   .converted = 8 + 8 + kInputs * kCast + kCast}};
}

// Cosines and sines in fp32 turn bf16 queries and keys into fp32, and autocast casts these for
// attention. With norms of heads, whose fp32 weights write fp32, all is as in fp32.
Passes wide_rotary(bool has_head_norms) {
  if (has_head_norms) {
    const Passes rotary = huggingface_kernels(kSingle).rotary;
    const Passes norm = huggingface_head_norm(kHalf);
    constexpr Passes kCasts = {.forward = {.converted = kCast + kHalf},
                               .backward = {.converted = kCast + kHalf}};
    return rotary + norm + kCasts;
  }
  return {
      .forward = {.streamed = 3 * kSingle, .converted = kCast, .rearranged = 2 * kCast + 3 * kHalf},
      .backward = {.streamed = 6 * kHalf,
                   .converted = 3 * kCast,
                   .rearranged = 2 * 2 * kSingle + 5 * kHalf}};
}

// Gemma's norms multiply by 1 + weight in fp32, where Llama's do so in the type of the stream
// (GemmaRMSNorm): the product 8 and, backward, its derivatives 12 and 8 and the sum of the
// weight's 4, in place of 2, 3, 2 and 1 of e bytes.
Passes gemma_norm(Passes norm, double e) {
  norm.forward.streamed += 8;
  norm.forward.converted -= 2 * e;
  norm.backward.streamed += 12 + 8 + 4 - (3 + 1) * e;
  norm.backward.converted -= 2 * e;
  return norm;
}

// Of four norms in a layer two stand in front of no products and no addition of the stream: these
// are counted with every norm as one, of the residual 3 forward, of gradients 3 and 4.5 backward.
Passes of_four_norms(Passes norm, double e) {
  norm.forward.streamed -= 3 * e / 2;
  norm.backward.streamed -= (3 + 4.5) * e / 2;
  return norm;
}

// Frozen norms have no weight gradients: the product with the normed value 3, and its sum 1.
Passes of_frozen_norm(Passes norm, double e) {
  norm.backward.streamed -= 4 * e;
  return norm;
}

// A turned part of a head is put together with the rest, 2; backward each of two parts lies in
// zeros of the whole, 1 and a copy of 2 between them, and both are added up, 3. A product of
// complex numbers in fp32 is 8 between a cast and one back. What DeepSeek-V3 does with even and odd
// elements, 9 forward, is counted as Llama's 10.
Passes of_rotary(Passes halves, RotaryKind kind, double e) {
  switch (kind) {
    case RotaryKind::kHalves:
    case RotaryKind::kEvenAndOdd: return halves;
    case RotaryKind::kPart:
    case RotaryKind::kPairs:
      return halves + Passes{.forward = {.rearranged = 2 * e},
                             .backward = {.streamed = 3 * e, .rearranged = (2 + 2) * e}};
    case RotaryKind::kComplex: {
      const KernelBytes product = {.streamed = 2 * kSingle, .converted = 2 * (e + kSingle)};
      return {.forward = product, .backward = product};
    }
  }
  return halves;
}

LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  const bool is_wide = has_wide_stream(job, plan);
  LayerKernels kernels = huggingface_kernels(e);
  if (is_wide) {
    kernels.norm = wide_norm();
    kernels.rotary = wide_rotary(job.model.qk_norm);
  } else if (job.model.qk_norm) {
    kernels.rotary = kernels.rotary + huggingface_head_norm(e);
  }
  const RotaryKind rotary = class_of(job.model).rotary;
  kernels.rotary = of_rotary(kernels.rotary, rotary, e);
  if (rotary != RotaryKind::kHalves) {  // heads lie in front of tokens: the output is copied
    kernels.copies.forward.rearranged += 2 * e;
  }
  const double stream = is_wide ? kSingle : e;
  const bool is_gemma = class_of(job.model).norm == NormKind::kGemma;
  if (is_gemma) {
    kernels.norm = gemma_norm(kernels.norm, stream);
  }
  if (job.model.norms_per_layer > 2) {
    kernels.norm = of_four_norms(kernels.norm, stream);
  }
  if (job.adapters.rank > 0) {
    kernels.norm = of_frozen_norm(kernels.norm, is_gemma ? kSingle : stream);
  }
  return kernels;
}

// Autograd adds the gradients of later microbatches to the first one's
// (torch/csrc/autograd/functions/accumulate_grad.h); under FSDP2 they stay whole until the last
// microbatch (Trainer runs the others under accelerator.no_sync).
KernelBytes accumulation(const Job& job, const Plan& plan) {
  const double microbatches = number(num_microbatches(job, plan));
  return {.streamed = (microbatches - 1) / microbatches * 3 * autograd_element_bytes(job, plan)};
}

// Autocast's cast of a weight has a backward of its own.
KernelBytes weight_gradient(const Job& job, const Plan& plan) {
  const KernelBytes cast = {.converted = casts_weights(job, plan) ? kCast : 0};
  return cast + accumulation(job, plan);
}

// The table's gradient is whole: zeros, and what tokens touch (embedding_dense_backward). A tied
// head's is added to it.
TableGradientKernels table_gradient(const Job& job, const Plan& plan) {
  if (job.adapters.rank > 0) {
    return {};
  }
  const double grad = autograd_element_bytes(job, plan);
  const double tied = job.model.tied_embeddings ? 3 * grad : 0;
  return {.token = {.fused = activation_element_bytes(plan) + 2 * grad},
          .table = KernelBytes{.fused = grad, .streamed = tied} + accumulation(job, plan)};
}

// Divided, tanh and multiplied, and the derivatives of the three.
Passes soft_cap(double e) {
  return {.forward = {.streamed = 6 * e}, .backward = {.streamed = 7 * e}};
}

// PyTorch's cross_entropy of logits in fp32 (loss/loss_utils.py ForCausalLMLoss); logits of fp32
// products are not cast. Behind the loss accelerate casts the logits that it returns
// (utils/operations.py ConvertOutputsToFp32), where it has put autocast around the model.
LossKernels loss_kernels(const Job& job, const Plan& plan, std::int64_t tokens) {
  constexpr Passes kFp32Loss{.forward = {.streamed = 12}, .backward = {.fused = 4, .streamed = 12}};
  Passes logit = plan.precision == Precision::kFp32 ? kFp32Loss : kEagerLoss;
  if (uses_autocast(job, plan)) {
    logit.forward = logit.forward + KernelBytes{.converted = kCast};
  }
  if (job.model.caps_logits) {
    logit = logit + soft_cap(activation_element_bytes(plan));
  }
  const bool casts = casts_weights(job, plan);
  return {.logit = logit,
          .tokens = tokens,
          .has_weight_kernels = casts,
          .weight = {.converted = casts ? kCast : 0}};
}

// Rows of experts in elements of the hidden size, each kernel reading and writing them: gathered,
// masked in front, the gate and up projections masked, the output masked, weighted, put back and
// summed; backward their derivatives, and zeros that gathered gradients are added to (transformers
// 5.17 integrations/moe.py grouped_mm_experts_forward). All ranks have all experts.
BlockTime expert_exchange(const BlockContext& context, double rows) {
  const ModelSpec& model = context.model();
  const double bytes = rows * number(model.hidden) * context.element_bytes;
  const double wide = 2 * number(model.moe.expert_ffn) / number(model.hidden);
  return memory_bound(context, bytes,
                      {.forward = {.streamed = 2 + 2 + 2 * wide + 2 + 2 + 2 + 1},
                       .backward = {.streamed = 1 + 2 + 5 + 2 + 2 * wide + 2 + 3}});
}

}  // namespace

constinit const BlockKernels kKernels = {
    .host = kHost,
    .layer = layer_kernels,
    .weight_gradient = weight_gradient,
    .trains_weights = [](const Job& job) { return job.adapters.rank == 0; },
    .add_beside_products = add_beside_products,
    .casts_router =
        [](const Job& job) { return class_of(job.model).router != RouterKind::kSoftmax; },
    .expert_exchange = expert_exchange,
    .table_gradient = table_gradient,
    .loss = loss_kernels};

}  // namespace shardplan::transformers
