// Every number of bytes counts how often one element is read or written; e is its size.
#include "estimator/frameworks/native/kernels.h"

#include <algorithm>

#include "estimator/frameworks/native/token_pieces.h"
#include "estimator/frameworks/pieces/eager_kernels.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_context_parallel.h"
#include "estimator/time/block_experts.h"
#include "estimator/time/block_replay.h"
#include "estimator/time/block_work.h"

namespace shardplan::native {
namespace {

// Residual addition and norm in one kernel: two read, two written. Rotary embedding in place.
LayerKernels layer_kernels(const Job& job, const Plan& plan) {
  const double e = activation_element_bytes(plan);
  return {.norm = {.forward = {.fused = 4 * e}, .backward = {.fused = 4 * e}},
          .rotary = with_head_norms({.forward = {.fused = 2 * e}, .backward = {.fused = 2 * e}},
                                    job.model),
          .gated = {.forward = {.fused = 3 * e}, .backward = {.fused = 5 * e}},
          .plain = {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}}};
}

KernelBytes weight_gradient(const Job&, const Plan& plan) {
  return {.fused = activation_element_bytes(plan) + 2 * gradient_element_bytes(plan)};
}

// One pass over bf16 logits with the gradient in place 2 + 2 + 2, halves of it in either direction;
// a part of the tokens at a time.
LossKernels loss_kernels(const Job& job, const Plan&, std::int64_t tokens) {
  return {.logit = {.forward = {.fused = 6. / 2}, .backward = {.fused = 6. / 2}},
          .tokens = div_ceil(tokens, job.profile.cross_entropy_chunks)};
}

// Whether it rounds an output gradient for one product at a time: in pieces of tokens for the
// input's gradient, then at once for the weight's. Pieces that no product in fp8 takes, of less
// than 16 tokens, only hide communication (choices.h, set_fastest).
bool rounds_gradient_again(const BlockContext& context) {
  return context.job.profile.tensor_parallel_chunk_tokens >= 16 &&
         token_pieces(context.job, context.plan) > 1;
}

// Nothing is kept in fp8: before every product both factors are read for their largest value and
// again to round them; the weight once for all pieces of tokens, the output's gradient once for two
// products that take it as a whole (validator/lower/fp8.cpp).
BlockTime rounding(const BlockContext& context, const ProductShape& layer) {
  const GpuSpec& gpu = context.gpu();
  const double input = number(layer.count * layer.m * layer.k);
  const double gradient = number(layer.count * layer.m * layer.n);
  const double weight = number(layer.count * layer.n * layer.k);
  const bool again = rounds_gradient_again(context);
  BlockTime time;
  time.forward_s = memory_bound_s(gpu, 5 * (input + weight));
  time.backward_input_s = memory_bound_s(gpu, (again ? 5 : 6) * gradient + 5 * weight);
  time.backward_weight_s = memory_bound_s(gpu, 5 * (again ? input + gradient : input));
  return time;
}

// This rank's part is copied to where the others' parts are gathered, and parts that have arrived
// are added up, the output's in forward, the input's gradient in backward.
BlockTime own_parts(const BlockContext& context, double in_bytes, double out_bytes) {
  const double ranks = number(context.plan.tp);
  BlockTime time =
      memory_bound(context, in_bytes,
                   {.forward = {.streamed = 2 / ranks}, .backward = {.streamed = 3 / ranks + 1}});
  add(time,
      memory_bound(context, out_bytes,
                   {.forward = {.streamed = 1 / ranks + 1}, .backward = {.streamed = 2 / ranks}}));
  return time;
}

// Kernels that a layer has more than in one piece, half of them for each of its two regions:
// copies, sums, norms, SwiGLU and products.
BlockTime further_kernels(const BlockContext& context) {
  BlockTime time;
  if (!context.gpu().times) {
    return time;
  }
  const double pieces = number(token_pieces(context.job, context.plan));
  const double piece_s = context.gpu().constants->piece_s;
  time.forward_s = piece_s * (4 * pieces + 7 * (pieces - 1)) / 2;
  time.backward_input_s = piece_s * (6 * pieces + 7 * (pieces - 1)) / 2;
  note(context, PieceKind::kElementwise, time);
  return time;
}

BlockTime piece_kernels(const BlockContext& context, double in_bytes, double out_bytes) {
  BlockTime time = own_parts(context, in_bytes, out_bytes);
  add(time, further_kernels(context));
  return time;
}

bool adds_key_gradients(const Job& job, const Plan& plan) {
  return plan.cp_method == CpMethod::kAllGather &&
         attends_on_warpgroups(job.cluster.gpu, job.model.head_dim);
}

// Keys of the two calls of one sequence, on the rank whose chunks lie in the middle: windows are
// cut off at the start of the sequence there least of all.
std::int64_t keys_of_gathered_calls(const BlockContext& context, std::int64_t window) {
  const std::int64_t c = context.plan.cp;
  const std::int64_t chunk = div_ceil(context.job.sequence_length, 2 * c);
  const std::int64_t before = gathered_keys_before(context.job, window);
  return 2 * chunk + std::min(before, (c - 1) * chunk) + std::min(before, c * chunk);
}

// Merges (validator/lower/ring.cpp, validator/lower/attention.cpp). Ring: keys and values into
// their buffer 4; the sum of outputs and of query gradients in fp32, into it 6 and out of it 6,
// those of keys and values likewise; a block of a hop has all queries and half of the keys or the
// reverse, three quarters on average, each merged or added with 10. Gathered: own keys and values
// into the gathered tensor 4, their gradients summed from the parts of c ranks 2 c + 2, and zeros
// for them, c times 2; where they are cuDNN's, those of every call are added to it, 6 for each of
// its keys and values.
BlockTime merges(const BlockContext& context, const LayerSpec& layer, const AttentionWork& work) {
  const double queries = number(context.tokens * work.heads * work.qk_dim);
  const double keys_values = number(context.tokens * key_value_width(context));
  const double c = number(context.plan.cp);
  if (context.plan.cp_method != CpMethod::kRing) {
    BlockTime time =
        memory_bound(context, keys_values,
                     {.forward = {.fused = 4}, .backward = {.fused = 4 + (2 * c + 2) + 2 * c}});
    if (context.plan.cp_method == CpMethod::kAllGather &&
        !attends_on_warpgroups(context.gpu(), context.model().head_dim)) {
      const std::int64_t keys =
          context.plan.micro_batch * keys_of_gathered_calls(context, layer.attention_window);
      add(time, memory_bound(context, number(keys * key_value_width(context)),
                             {.backward = {.fused = 6}}));
    }
    return time;
  }
  const double of_hops = 7.5 * (c - 1);
  BlockTime time = memory_bound(
      context, queries, {.forward = {.fused = 12 + of_hops}, .backward = {.fused = 12 + of_hops}});
  add(time, memory_bound(context, keys_values,
                         {.forward = {.fused = 4}, .backward = {.fused = 16 + of_hops}}));
  return time;
}

// Rows are written where they belong, and what comes back is added up, with nothing between
// (validator/lower/moe.cpp): rows are written once and read once, tokens likewise.
BlockTime exchange(const BlockContext& context, double rows) {
  const double tokens = 1 / static_cast<double>(context.model().moe.topk);
  const double row_bytes = number(context.model().hidden) * context.element_bytes;
  const KernelBytes once = {.fused = 2 * (1 + tokens)};
  return exposed_exchange(
      context, memory_bound(context, rows * row_bytes, {.forward = once, .backward = once}),
      context.plan.ep > 1 ? context.ep : context.etp, exchange_cost(context, rows));
}

// Backward writes again what it dropped and reads: a norm without its addition, SwiGLU's output
// beside SwiGLU's gradient, and never what lies behind a last product (validator/lower/layer.cpp,
// validator/lower/moe.cpp). Shares are of the bytes of the forward kernels (layer_kernels).
LayerReplay written_again(const Job&, const LayerSpec&, const LayerParts& parts) {
  constexpr double kNormShare = 2.0 / 4;
  constexpr double kSwigluShare = 1.0 / 3;
  const auto only = [](double seconds) {
    return ReplayTime{.kernels_s = seconds, .total_s = seconds};
  };
  LayerReplay replay = replay_of_parts(parts);
  const double experts_s = parts.routed_activation.forward_s;
  replay.norms = only(kNormShare * parts.norms.forward_s);
  replay.ffn = only(kSwigluShare * parts.ffn_activation_s);
  replay.routed =
      only(parts.routed.forward_total_s() - parts.routed_last_s + (1 - kSwigluShare) * experts_s);
  replay.routed_activation = only(kSwigluShare * experts_s);
  replay.shared = only(parts.shared.forward_total_s() - parts.shared_last_s -
                       (1 - kSwigluShare) * parts.shared_activation_s);
  replay.left_out_s = parts.ffn_last_s + parts.routed_last_s + parts.shared_last_s;
  return replay;
}

}  // namespace

bool attends_on_warpgroups(const GpuSpec& gpu, std::int64_t head_dim) {
  return gpu.compute_capability == 90 && (head_dim == 64 || head_dim == 128);
}

constinit const BlockKernels kKernels = {
    .host = kUnmeasuredHost,
    .layer = layer_kernels,
    .weight_gradient = weight_gradient,
    .fp8_rounding = rounding,
    .gathers_before_rounding = true,
    .has_grouped_kernels = true,
    .attends_by_sequence = true,
    .adds_key_gradients = adds_key_gradients,
    .sends_gradients_in_fp32 = true,
    .context_parallel_merges = merges,
    .moves_by_copies = true,
    .token_pieces = token_pieces,
    .piece_kernels = piece_kernels,
    .expert_exchange = exchange,
    .table_gradient = [](const Job&, const Plan& plan) { return touched_table_gradient(plan); },
    .loss = loss_kernels,
    .replay = written_again};

}  // namespace shardplan::native
