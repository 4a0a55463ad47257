// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/torchtitan/kernels.h"

#include <algorithm>
#include <stdexcept>

#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/exchange_kernels.h"
#include "estimator/frameworks/torchtitan/gpt_oss/kernels.h"
#include "estimator/frameworks/torchtitan/host.h"
#include "estimator/plan/number.h"

namespace shardplan::torchtitan {
namespace {

// model.py, one PyTorch kernel an operator. Forward: norm 2, residual addition 3; rotary embedding
// on complex numbers: to fp32, product, back; silu 2, product 3. Backward: norm 5 (two kernels, for
// input and weight), residual 3, and the sums of input gradients, of q, k and v 6 and of w1 and w3
// 3; product 6, silu 3.
LayerKernels eager_kernels(double e) {
  return {.norm = {.forward = {.streamed = 5 * e}, .backward = {.streamed = 12.5 * e}},
          .rotary = {.forward = {.streamed = e + 4, .rearranged = e + 12},
                     .backward = {.streamed = 2 * e + 16}},
          .gated = eager_swiglu(e),
          .plain = eager_activation(e)};
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

// Compiled, norm and rotation are one kernel, 2; backward the rotation to fp32 e + 4, the norm's 4
// + 2e, and for its weight 4 + e. Callers pass twice.
Passes compiled_rotation_by_halves(double e) {
  return {.forward = {.streamed = 2 * e / 2}, .backward = {.streamed = (12 + 4 * e) / 2}};
}

// The same block compiled: norms take the additions before them along, silu and product are one
// kernel; the complex product stays PyTorch's own.
LayerKernels compiled_kernels(double e) {
  return {.norm = {.forward = {.streamed = 4.5 * e}, .backward = {.streamed = 7 * e}},
          .rotary = {.forward = {.streamed = 2 * e + 8, .converted = 8},
                     .backward = {.streamed = 2 * e + 16}},
          .gated = {.forward = {.streamed = 3 * e}, .backward = {.streamed = 5 * e}},
          .plain = eager_activation(e)};
}

LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  const bool is_compiled = compiles_layers(job.profile);
  LayerKernels kernels = is_compiled ? compiled_kernels(e) : eager_kernels(e);
  if (job.model.is_mla()) {
    kernels.rotary = latent_rotation(job.model, e);
  }
  if (job.model.qk_norm) {
    kernels.rotary =
        is_compiled ? compiled_rotation_by_halves(e) : rotation_by_halves(e, plan.zero == 0);
  }
  if (is_gpt_oss(job.model)) {
    kernels.rotary = halves_rotation_kernels(e);
    kernels.copies = sink_kernels(job.model, e);
    kernels.gated = bounded_gate_kernels(job.cluster.gpu, e);
  }
  kernels.rotary = with_head_norms(kernels.rotary, job.model);
  return kernels;
}

// GPT-OSS has flex_attention alone (gpt_oss/rules.h).
AttentionBackend attention_kernels(const Job& job, const Plan& plan) {
  return is_gpt_oss(job.model) ? AttentionBackend::kFlex : asked_attention_backend(job, plan);
}

// PyTorch's loss: cast 6, log-softmax 12 (its input twice); backward zeros 4, gradient 12, cast 6;
// compiled: bf16 logits read twice; backward read and written. Zeros and casts to bf16 are as fast
// as fused kernels.
LossKernels loss_kernels(const Job& job, const Plan&, std::int64_t tokens) {
  constexpr Passes kCompiledLoss{.forward = {.streamed = 4}, .backward = {.streamed = 4}};
  return {.logit = compiles_loss(job.profile) ? kCompiledLoss : kEagerLoss, .tokens = tokens};
}

// Gradients of later microbatches, a weight. Under FSDP those of a pipeline stay whole until the
// last one: the first is cast to the accumulator, others are added to it (FSDP2's fsdp_param.py,
// to_accumulated_grad_if_needed and accumulate_unsharded_grad_if_needed). On one GPU autograd adds
// them to the fp32 ones that it has.
KernelBytes accumulation(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  const double grad = gradient_element_bytes(plan);
  const double microbatches = number(accumulated_microbatches(job, plan));
  const double later = (microbatches - 1) / microbatches;
  if (plan.zero != 3) {
    return {.streamed = later * 3 * grad};
  }
  return later > 0 ? KernelBytes{.converted = (1 - later) * (e + grad) + later * (e + 2 * grad)}
                   : KernelBytes{};
}

TableGradientKernels table_gradient(const Job& job, const Plan& plan) {
  return {.token = touched_table_gradient(plan).token, .table = accumulation(job, plan)};
}

// FSDP2 takes gradients from where products have written them (sharding_time.h), the only ones or
// the sum of a pipeline's; without it autocast turns them into fp32.
KernelBytes weight_gradient(const Job& job, const Plan& plan) {
  const double cast_bytes = activation_element_bytes(plan) + gradient_element_bytes(plan);
  const KernelBytes cast = plan.zero == 3 ? KernelBytes{} : KernelBytes{.converted = cast_bytes};
  return cast + accumulation(job, plan);
}

// Selective policies: every second layer in full; or by operation, which keeps attention,
// collectives and every second product and replays the other half and what is cheap. A mixture's
// grouped products and all-to-alls are not among what it keeps (models/qwen3/infra/parallelize.py,
// _op_sac_save_list).
double replayed_policy_s(const std::string& policy, const LayerTime& layer) {
  if (policy == "every_second_layer") {
    return layer.time.forward_total_s() / 2;
  }
  if (policy == "every_second_matmul") {
    const LayerReplay& parts = layer.replay;
    return parts.norms.kernels_s + parts.routed.total_s + parts.routed_activation.total_s +
           (parts.projections.kernels_s + parts.mla_up.kernels_s + parts.ffn.kernels_s +
            parts.shared.kernels_s) /
               2;
  }
  throw std::logic_error("recompute policy without a time model: " + policy);
}

}  // namespace

// Floors ask for updates with any microbatch, also one that does not divide the batch.
std::int64_t accumulated_microbatches(const Job& job, const Plan& plan) {
  const std::int64_t sequences = data_parallel_size(job, plan) * plan.micro_batch;
  return plan.zero == 3 && plan.pp == 1 ? 1
                                        : std::max<std::int64_t>(1, job.global_batch / sequences);
}

constinit const BlockKernels kKernels = {.host = kHost,
                                         .layer = layer_kernels,
                                         .weight_gradient = weight_gradient,
                                         .attention_kernels = attention_kernels,
                                         .context_parallel_merges = torchtitan_ring_merges,
                                         .keeps_gathered_input = true,
                                         .sequence_copies = torchtitan_sequence_copies,
                                         .expert_exchange = expert_exchange,
                                         .table_gradient = table_gradient,
                                         .loss = loss_kernels,
                                         .replayed_policy_s = replayed_policy_s};

}  // namespace shardplan::torchtitan
