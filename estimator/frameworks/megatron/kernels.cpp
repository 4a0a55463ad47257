// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/megatron/kernels.h"

#include <algorithm>
#include <stdexcept>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/adapters/kernels.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/expert_kernels.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/host.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/frameworks/megatron/mixers/mixer_kernels.h"
#include "estimator/frameworks/megatron/mixers/sparse_attention.h"
#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_fp8.h"
#include "estimator/time/block_replay.h"
#include "estimator/time/block_work.h"

namespace shardplan::megatron {
namespace {

// A gate bounded from above and an up bounded on both sides, by operators of PyTorch
// (core/fusions/fused_bias_geglu.py; torch/csrc/autograd/FunctionsManual.cpp, clamp_backward): both
// are halves of what the product made, and so are their gradients. Forward both read and written 4
// and, for a fused activation, put together 4, else 1 added to the up 2. Backward three comparisons
// that read 1 each and write a byte, two of them joined 3 bytes, choices by a byte 2 each, and both
// gradients put together 4.
Passes clamps(SwigluKind kind, double e) {
  const bool is_fused = kind == SwigluKind::kFused;
  return {.forward = {.streamed = is_fused ? 0 : 2 * e, .rearranged = is_fused ? 8 * e : 4 * e},
          .backward = {.streamed = 3, .rearranged = 3 * (e + 1) + 2 * (2 * e + 1) + 4 * e}};
}

// Biased experts leave biases to be added apart from dropout and residual
// (core/transformer/moe/experts.py, TEGroupedMLP), of which attention's projection has one:
// forward 2, backward their gradient's sum 1, of every second norm.
Passes bias_beside_residual(double e) {
  return {.forward = {.converted = e}, .backward = {.streamed = e / 2}};
}

// Without positions grouped queries are copied out of the packed projection all the same.
bool copies_unturned(const ModelSpec& model) {
  return model.learned_positions == 0 && model.num_kv_heads < model.num_heads;
}

// Layers with Transformer Engine or Apex. Norm 2, residual addition 3; backward 3 and the addition
// of gradients 3. Attention takes packed queries, keys and values as they are without a rotary
// embedding. With one and grouped queries these are copied out of the packed projection
// (core/transformer/attention.py, get_query_key_value_tensors), values always (Transformer Engine,
// get_qkv_layout); backward the three gradients are put together. Backward of the compiled SwiGLU
// either half of its cat reads output's gradient and gate (core/fusions/fused_bias_swiglu.py);
// unfused it writes and reads silu(gate) as well. Experts' probabilities multiply it; theirs is a
// gradient of 3 of its own (weighted_swiglu_back).
LayerKernels engine_kernels(const Job& job, double e) {
  const ModelSpec& model = job.model;
  LayerKernels kernels;
  kernels.norm = {.forward = {.fused = 5 * e}, .backward = {.fused = 6 * e}};
  if (model.moe.biased_experts && model.attention_output_bias) {
    kernels.norm = kernels.norm + bias_beside_residual(e);
  }
  kernels.plain = {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}};
  if (turns_positions(model)) {
    const KernelBytes turned =
        at_share(job.cluster.gpu, 2 * e, &TimeConstants::engine_rotary_share);
    kernels.rotary = {.forward = turned, .backward = turned};
  }
  if (turns_positions(model) || copies_unturned(model)) {
    const double value = static_cast<double>(model.num_kv_heads) /
                         static_cast<double>(std::max<std::int64_t>(1, model.num_heads));
    const double copied = (model.num_kv_heads < model.num_heads ? 1 : 0) + value;
    kernels.copies = {.forward = {.rearranged = 2 * e * copied},
                      .backward = {.fused = 2 * e * (1 + 2 * value)}};
  }
  kernels.gated = job.profile.swiglu == SwigluKind::kUnfused
                      ? Passes{.forward = {.fused = 5 * e}, .backward = {.fused = 8 * e}}
                      : Passes{.forward = {.fused = 3 * e}, .backward = {.streamed = 7 * e}};
  if (model.activation == Activation::kClampedSwiglu) {
    kernels.gated = kernels.gated + clamps(job.profile.swiglu, e);
  }
  kernels.weighted = {.backward = {.fused = 3 * e}};
  return kernels;
}

// Local layers. Norm 2 and addition 3; backward 5 and 3. rope_utils.py: products with cosine and
// sine 4, negation 1 and cat 2 of the halves, addition 3, cat with what is not turned 2; backward
// the same but for the last. Queries are copied out of the packed projection, and their gradients
// back into it. SwiGLU is compiled (fused_bias_swiglu.py).
LayerKernels local_kernels(double e) {
  return {.norm = {.forward = {.streamed = 5 * e}, .backward = {.streamed = 8 * e}},
          .rotary = {.forward = {.streamed = 5 * e, .rearranged = 7 * e},
                     .backward = {.streamed = 4 * e, .rearranged = 7 * e}},
          .copies = {.forward = {.rearranged = 2 * e}, .backward = {.streamed = 3 * e}},
          .gated = {.forward = {.fused = 3 * e}, .backward = {.streamed = 5 * e}},
          .plain = eager_activation(e)};
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

// Latent attention without fused kernels (core_v0.16.1 core/models/common/embeddings/rope_utils.py,
// transformer/multi_latent_attention.py). Turned parts of queries: halves out of every second
// element 2, negation 1 of one half and read of the other, cat 2, products 2 and 2, sum 3, cat with
// nothing 2; queries and keys put together of two parts and values made contiguous, 2. Backward
// products 2 and 2, negation 1, cat 2, sum 3, and zeros with every second element 2 and 2, sum 3
// and the heads' sum of keys 1; gradients of both projections put together, 2.
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

LayerKernels paper_layer_kernels(const Job& job, const Plan& plan) {
  LayerKernels kernels = engine_kernels(job, activation_element_bytes(plan));
  kernels.rotary = with_head_norms(kernels.rotary, job.model);
  return kernels;
}

// Transformer Engine's layers without fused kernels turn queries and keys as the local ones do.
// Norms of heads pass over the same elements as the fused ones.
LayerKernels engine_layer_kernels(const Job& job, const Plan& plan) {
  if (job.profile.rope_fusion || !turns_positions(job.model)) {
    return paper_layer_kernels(job, plan);
  }
  const double e = activation_element_bytes(plan);
  LayerKernels kernels = engine_kernels(job, e);
  const Passes turned =
      job.model.is_mla() ? unfused_latent_rotation(job.model, e) : local_kernels(e).rotary;
  kernels.rotary = job.model.qk_norm ? turned + kernels.rotary : turned;
  return kernels;
}

LayerKernels local_layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  LayerKernels kernels = local_kernels(e);
  if (job.model.qk_norm) {
    kernels.rotary = kernels.rotary + local_head_norm(job.model, e);
  }
  return kernels;
}

// Halves of what both directions read and write together.
Passes in_halves(double bytes) {
  return {.forward = {.fused = bytes / 2}, .backward = {.fused = bytes / 2}};
}

Passes unfused_loss() {
  return kLossCast + loss_of_cast_logits({.streamed = kLossReductions});
}

// Transformer Engine's loss: maximum and sum 2, gradient in place 4, scaled by the loss's own 4
// (pytorch/triton/cross_entropy.py); a separate fp32 gradient 2 + 2 + 4 + 4 + 2; native fused: cast
// 6, maximum 4, exponentials and sum 8, division 8, gradient 8, cast 6.
Passes engine_loss(CrossEntropyKind kind) {
  switch (kind) {
    case CrossEntropyKind::kTeFused:
      return {.forward = {.fused = 4, .converted = 2}, .backward = {.fused = 4}};
    case CrossEntropyKind::kTeFusedSeparateGrad: return in_halves(14);
    case CrossEntropyKind::kNativeFused: return in_halves(40);
    case CrossEntropyKind::kUnfused: return unfused_loss();
    case CrossEntropyKind::kChunked: break;
  }
  throw std::logic_error("engine_loss: no such loss in Megatron-LM");
}

LossKernels engine_loss_kernels(const Job& job, const Plan&, std::int64_t tokens) {
  return {.logit = engine_loss(job.profile.cross_entropy), .tokens = tokens};
}

LossKernels local_loss_kernels(const Job&, const Plan&, std::int64_t tokens) {
  return {.logit = unfused_loss(), .tokens = tokens};
}

// The table's gradient is PyTorch's: zeros for the whole table, sums of tokens in parts of fp32
// (written, read and written) and the hook's addition to the main gradient
// (core/models/common/embeddings, core/distributed/distributed_data_parallel.py). A frozen one has
// none.
TableGradientKernels table_gradient(const Job& job, const Plan& plan) {
  if (trains_adapters(job) && !job.adapters.trains_table) {
    return {};
  }
  const double e = activation_element_bytes(plan);
  return {.token = at_share(job.cluster.gpu, 2 * e + 8, &TimeConstants::embedding_sum_share),
          .table = {.streamed = e, .converted = e + 2 * gradient_element_bytes(plan)}};
}

KernelBytes plain_weight_gradient(const Job&, const Plan& plan) {
  return added_gradient(plan);
}

// Megatron-FSDP copies gradients into the bucket that is reduced (megatron_fsdp.py, _grad_acc).
KernelBytes weight_gradient(const Job& job, const Plan& plan) {
  return is_megatron_fsdp(job, plan) ? KernelBytes{.converted = activation_element_bytes(plan) +
                                                                gradient_element_bytes(plan)}
                                     : added_gradient(plan);
}

// Transformer Engine rounds as libraries do, and once a step the weight too (is_first_microbatch);
// with scales of the tensor itself it reads all of it once more before, for the largest value
// (Float8CurrentScaling; data/measured/fp8_products_h100.csv).
BlockTime engine_rounding(const BlockContext& context, const ProductShape& layer) {
  const double bytes = context.job.profile.fp8_recipe == Fp8Recipe::kTensorwise ? 6 : 4;
  const double weights =
      number(layer.count * layer.n * layer.k) / number(num_microbatches(context.job, context.plan));
  return rounding_by_library(context, layer, bytes, weights);
}

bool trains_linears(const Job& job) {
  return !trains_adapters(job);
}

// What a sink adds to unfused attention, bytes of a score (UnfusedDotProductAttention, softmax.py
// forward_torch_softmax): the sink put behind 4, cast to fp32 6, masked 9, PyTorch's softmax 4 more
// than the fused one and cast back 6; backward a column of zeros put behind 6, cast 6, softmax 18
// more, masked 9, cast 6 and the sink's sum 2.
void add_sink_scores(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  if (!layer.has_sinks || !saves_probabilities(context.job, context.plan)) {
    return;
  }
  const double scores =
      number(context.tokens * div_ceil(context.model().num_heads, context.plan.tp)) *
      number(context.job.sequence_length);
  begin_part(context, "attention");
  add(parts.attention,
      memory_bound(context, scores, {.forward = {.streamed = 29}, .backward = {.streamed = 47}}));
}

void add_beside_products(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  add_sink_scores(context, layer, parts);
  add_sparse_kernels(context, layer, parts);
  add_output_gate(context, layer, parts);
  add_adapters_beside_products(context, layer, parts);
}

double fp8_rate_share(const Job& job) {
  return job.profile.fp8_recipe == Fp8Recipe::kBlockwise
             ? job.cluster.gpu.constants->blockwise_share
             : 1;
}

bool adds_deterministically(const Job& job) {
  return job.profile.deterministic_attention;
}

bool casts_router(const Job& job) {
  return job.profile.moe_router_casts;
}

LayerReplay replay(const Job& job, const LayerSpec& layer, const LayerParts& parts) {
  LayerReplay times = replay_of_parts(parts);
  const SeparateNorms separate = separate_norms(job, layer.is_moe);
  const double share = ((separate.attention ? 1 : 0) + (separate.ffn ? 1 : 0)) / 2.0;
  times.norms.kernels_s *= share;
  times.norms.total_s *= share;
  return times;
}

}  // namespace

constinit const BlockKernels kKernels = {.host = kHost,
                                         .layer = engine_layer_kernels,
                                         .weight_gradient = weight_gradient,
                                         .trains_weights = trains_linears,
                                         .add_beside_products = add_beside_products,
                                         .adds_weight_gradients = fuses_weight_gradients,
                                         .fp8_rounding = engine_rounding,
                                         .fp8_rate_share = fp8_rate_share,
                                         .apart_product_s = &TimeConstants::apart_product_s,
                                         .attention_kernels = attention_backend,
                                         .saves_probabilities = saves_probabilities,
                                         .adds_deterministically = adds_deterministically,
                                         .add_mixer = add_mixer,
                                         .casts_router = casts_router,
                                         .expert_choice = expert_choice,
                                         .expert_exchange = expert_exchange,
                                         .exchange_cost = exchange_cost,
                                         .table_gradient = table_gradient,
                                         .loss = engine_loss_kernels,
                                         .replay = replay};

constinit const BlockKernels kLocalKernels = {.host = kLocalHost,
                                              .layer = local_layer_kernels,
                                              .weight_gradient = plain_weight_gradient,
                                              .attention_kernels = asked_attention_backend,
                                              .expert_choice = expert_choice,
                                              .expert_exchange = expert_exchange,
                                              .exchange_cost = exchange_cost,
                                              .table_gradient = table_gradient,
                                              .loss = local_loss_kernels};

constinit const BlockKernels kPaperKernels = {.host = kPaperHost,
                                              .layer = paper_layer_kernels,
                                              .weight_gradient = plain_weight_gradient,
                                              .expert_exchange = expert_exchange,
                                              .exchange_cost = exchange_cost,
                                              .table_gradient = table_gradient,
                                              .loss = engine_loss_kernels};

}  // namespace shardplan::megatron
