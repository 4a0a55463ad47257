// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/nanotron/kernels.h"

#include "estimator/frameworks/nanotron/host.h"
#include "estimator/frameworks/pieces/eager_kernels.h"

namespace shardplan::nanotron {
namespace {

// nanotron's models/llama.py with flash-attn's norm and rotary kernels in Triton. Norm 2, residual
// addition 3; backward 3 and the addition of gradients 3. Queries, keys and values made contiguous,
// keys and values put together and permuted, the projection's input transposed where a microbatch
// has several sequences; backward keys' and values' gradients joined, all three stacked (as many
// key-value heads as heads) and copied into the packed product's. Silu reads the strided half of
// gate and up 2, product 3; backward two products 3 and 3, silu 3, halves put together 4.
LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  const double heads = static_cast<double>(job.model.num_heads);
  const double key_values = 2 * static_cast<double>(job.model.num_kv_heads) / heads;
  const bool is_mha = job.model.num_kv_heads == job.model.num_heads;
  const double transposed = plan.micro_batch > 1 ? 2 * e : 0;
  const double packed = 2 * e * (1 + key_values);
  return {.norm = {.forward = {.fused = 2 * e, .streamed = 3 * e},
                   .backward = {.streamed = 3 * e, .rearranged = 3 * e}},
          .rotary = with_head_norms(
              {.forward = {.streamed = 2 * e}, .backward = {.streamed = 2 * e}}, job.model),
          .copies = {.forward = {.rearranged = packed + 4 * e * key_values + transposed},
                     .backward = {.rearranged =
                                      (is_mha ? 2 : 1) * packed + 2 * e * key_values + transposed}},
          .gated = {.forward = {.converted = 3 * e, .rearranged = 2 * e},
                    .backward = {.fused = 7 * e, .converted = 3 * e, .rearranged = 3 * e}},
          .plain = eager_activation(e),
          .light_attention = true};
}

PartedLoss parted_loss() {
  return {.cast = kLossCast, .loss = loss_of_cast_logits({.fused = kLossReductions})};
}

LossKernels loss_kernels(const Job&, const Plan&, std::int64_t tokens) {
  const PartedLoss parts = parted_loss();
  return {.logit = parts.cast + parts.loss, .tokens = tokens};
}

}  // namespace

constinit const BlockKernels kKernels = {
    .host = kHost,
    .layer = layer_kernels,
    .weight_gradient = [](const Job&, const Plan& plan) { return added_gradient(plan); },
    .attention_kernels = [](const Job&, const Plan&) { return AttentionBackend::kFlash; },
    .table_gradient = [](const Job&, const Plan& plan) { return touched_table_gradient(plan); },
    .loss = loss_kernels,
    .parted_loss = parted_loss};

}  // namespace shardplan::nanotron
