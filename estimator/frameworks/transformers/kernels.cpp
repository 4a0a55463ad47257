// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/transformers/kernels.h"

#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/frameworks/pieces/huggingface/adapter_kernels.h"
#include "estimator/frameworks/pieces/huggingface/expert_kernels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/kernels.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/pieces/huggingface_kernels.h"
#include "estimator/frameworks/pieces/ring_kernels.h"
#include "estimator/frameworks/transformers/host.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_context_parallel.h"
#include "estimator/time/block_work.h"

namespace shardplan::transformers {
namespace {

using huggingface::add_beside_products;
using huggingface::autograd_element_bytes;
using huggingface::casts_weights;
using huggingface::class_of;
using huggingface::expert_exchange;
using huggingface::has_wide_stream;
using huggingface::NormKind;
using huggingface::RotaryKind;
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

// A turned part of a head is put together with the rest, 2; backward each of two parts lies in
// zeros of the whole, 1 and a copy of 2 between them, and both are added up, 3. A product of
// complex numbers in fp32 is 8 between a cast and one back. What DeepSeek-V3 does with even and odd
// elements, 9 forward, is counted as Llama's 10.
Passes of_rotary(Passes halves, RotaryKind kind, double e) {
  switch (kind) {
    case RotaryKind::kHalves:
    case RotaryKind::kEvenAndOdd:
    case RotaryKind::kSplit: return halves;
    case RotaryKind::kPart:
    case RotaryKind::kPairs:
    case RotaryKind::kOwnPairs:
      return halves + Passes{.forward = {.rearranged = 2 * e},
                             .backward = {.streamed = 3 * e, .rearranged = (2 + 2) * e}};
    case RotaryKind::kComplex: {
      const KernelBytes product = {.streamed = 2 * kSingle, .converted = 2 * (e + kSingle)};
      return {.forward = product, .backward = product};
    }
    case RotaryKind::kWideTables:
    case RotaryKind::kWide:
    case RotaryKind::kWidePairs: return wide_rotary(false);
  }
  return halves;
}

// Whether the product with the weight is in the type of the stream.
bool is_in_half(NormKind kind) {
  return kind == NormKind::kLlama || kind == NormKind::kPlusOneLayer;
}

Passes of_norm(Passes norm, NormKind kind, double stream, bool has_autocast) {
  switch (kind) {
    case NormKind::kLlama: return norm;
    case NormKind::kGemma: return huggingface_gemma_norm(norm, stream);
    case NormKind::kWide:
    case NormKind::kGemma4: return huggingface_wide_norm(norm, stream);
    case NormKind::kCentred: return huggingface_centred_norm(norm, stream);
    case NormKind::kLayer: return huggingface_layer_norm(stream, has_autocast ? kSingle : stream);
    case NormKind::kPlusOneLayer: return huggingface_layer_norm(stream, stream);
  }
  return norm;
}

// relu 2 and its square 2; backward the root's power, its double and product 2, 2 and 3, and
// relu 3. xIELU: a comparison, three products, a smaller of two, a cast, an exponential, a
// difference, two sums and a choice, of which autocast has all behind the first in fp32; backward
// two derivatives of each product and the sums of six gradients of the input. GELU by operators:
// half of the input, a power, its scale, a sum, its scale, tanh, a shift and a product; backward
// the derivatives of each, and the sums of three gradients of the input.
Passes plain_activation(Activation activation, double e, double computed) {
  switch (activation) {
    case Activation::kReluSquared:
      return {.forward = {.streamed = 4 * e}, .backward = {.streamed = 10 * e}};
    case Activation::kNewGelu:
      return {.forward = {.streamed = 4 * e + 14 * computed, .converted = e + computed},
              .backward = {.streamed = 10 * e + 18 * computed, .converted = 2 * (e + computed)}};
    case Activation::kXielu:
      return {.forward = {.streamed = 11 * e + 18 * computed, .converted = 2 * (e + computed)},
              .backward = {.streamed = 14 * e + 30 * computed, .converted = 4 * (e + computed)}};
    default: return eager_activation(e);
  }
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
  kernels.plain = plain_activation(job.model.activation, e, uses_autocast(job, plan) ? kSingle : e);
  const RotaryKind rotary = class_of(job.model).rotary;
  kernels.rotary = of_rotary(kernels.rotary, rotary, e);
  if (rotary != RotaryKind::kHalves) {  // heads lie in front of tokens: the output is copied
    kernels.copies.forward.rearranged += 2 * e;
  }
  const double stream = is_wide ? kSingle : e;
  const NormKind norm = class_of(job.model).norm;
  kernels.norm = of_norm(kernels.norm, norm, stream, uses_autocast(job, plan));
  if (job.model.norms_per_layer > 2) {
    kernels.norm = huggingface_four_norms(kernels.norm, stream);
  }
  if (job.adapters.rank > 0) {
    kernels.norm = huggingface_frozen_norm(kernels.norm, is_in_half(norm) ? stream : kSingle);
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

BlockTime ring_merges(const BlockContext& context, const LayerSpec&, const AttentionWork& work) {
  if (context.plan.cp_method == CpMethod::kA2a ||
      context.job.profile.attention_backend == AttentionBackend::kFlash) {
    return {};  // heads alone are put together
  }
  const RingKernels kernels = eager_ring_merges(number(context.plan.cp));
  BlockTime time =
      memory_bound(context, number(context.tokens * work.heads * work.qk_dim), kernels.query);
  add(time,
      memory_bound(context, number(context.tokens * key_value_width(context)), kernels.key_value));
  return time;
}

// Tiles of an FFN run again in the backward pass.
void add_beside(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  add_beside_products(context, layer, parts);
  if (context.job.profile.ffn_tiles > 0 && !layer.is_moe) {
    BlockTime again;
    again.backward_input_s = parts.ffn.forward_s;
    note(context, PieceKind::kProduct, again);
    add(parts.ffn, again);
  }
}

}  // namespace

constinit const BlockKernels kKernels = {
    .host = kHost,
    .layer = layer_kernels,
    .weight_gradient = weight_gradient,
    .trains_weights = [](const Job& job) { return job.adapters.rank == 0; },
    .add_beside_products = add_beside,
    .rounds_to_tf32 = [](const Job& job) { return job.profile.tf32; },
    .sends_gradients_in_fp32 = true,
    .attends_in_rounds = true,
    .context_parallel_merges = ring_merges,
    .add_mixer = huggingface::add_mixer,
    .divides_by_product = true,
    .casts_router = [](const Job& job) { return huggingface::casts_router(job.model); },
    .expert_exchange = expert_exchange,
    .forward_passes = huggingface::passes_without_graph,
    .head_outputs = huggingface::head_outputs,
    .table_gradient = table_gradient,
    .loss = loss_kernels};

}  // namespace shardplan::transformers
