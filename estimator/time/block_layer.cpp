// Letters: h hidden, a and k query and kv heads, d head dimension, f FFN width, t tp degree,
// E experts; ql, kl, dn, dr, dv the widths of multi-head latent attention.
#include "estimator/time/block_layer.h"

#include <cmath>
#include <utility>

#include "estimator/plan/expert_loads.h"
#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_experts.h"

namespace shardplan {
namespace {

BlockTime norms(const BlockContext& context) {
  return memory_bound(
      context,
      number(context.model().norms_per_layer * context.sharded_tokens * context.model().hidden),
      context.kernels.norm);
}

BlockTime rotary(const BlockContext& context, std::int64_t width) {
  return memory_bound(context, number(context.tokens * width), context.kernels.rotary);
}

// Projections of keys and of values that a layer has of its own.
std::int64_t key_projections(const LayerSpec& layer) {
  return layer.key_values == KeyValueSource::kOwn             ? 2
         : layer.key_values == KeyValueSource::kKeysAreValues ? 1
                                                              : 0;
}

BlockTime gqa_projections(const BlockContext& context, const LayerSpec& layer) {
  const ModelSpec& model = context.model();
  const AttentionHeads of_layer = model.heads_of(layer);
  const std::int64_t heads = div_ceil(of_layer.num_heads, context.plan.tp);
  const std::int64_t kv_heads = div_ceil(of_layer.num_kv_heads, context.plan.tp);
  const std::int64_t query = heads * of_layer.qk_head_dim;
  const std::int64_t key_value = 2 * kv_heads * of_layer.qk_head_dim;
  const Precision precision = context.plan.precision;
  const bool has_gate = model.attention_gate == AttentionGate::kPerElement;
  const std::int64_t made = (has_gate ? 2 : 1) * query + key_projections(layer) * key_value / 2;
  const BlockTime in =
      linear(context, {.m = context.tokens, .n = made, .k = model.hidden}, precision);
  const BlockTime out =
      linear(context, {.m = context.tokens, .n = model.hidden, .k = query}, precision);
  BlockTime time = in;
  add(time, out);
  add(time, rotary(context, query + key_value / 2));
  add(time, memory_bound(context, number(context.tokens * query), context.kernels.copies));
  add(time, tensor_parallel_region(context, {.in = model.hidden,
                                             .out = model.hidden,
                                             .in_element_bytes = gathered_element_bytes(context),
                                             .columns = 3,
                                             .column = in,
                                             .row = out}));
  return time;
}

// Down-projections are whole on every tp rank and run on its share of the tokens; the compressed
// tokens are gathered instead of the hidden ones, before any is rounded to fp8 (Megatron-LM
// core/transformer/multi_latent_attention.py).
void add_mla(const BlockContext& context, LayerParts& parts) {
  const ModelSpec& model = context.model();
  const MlaSpec& mla = model.mla;
  const Precision precision = context.plan.precision;
  const std::int64_t heads = div_ceil(model.num_heads, context.plan.tp);
  const std::int64_t query = heads * mla.qk_head_dim();
  const std::int64_t key_value = heads * (mla.qk_nope_head_dim + mla.v_head_dim);
  const std::int64_t down = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim;
  parts.projections =
      linear(context, {.m = context.sharded_tokens, .n = down, .k = model.hidden}, precision);
  const BlockTime out = linear(
      context, {.m = context.tokens, .n = model.hidden, .k = heads * mla.v_head_dim}, precision);
  add(parts.projections, out);
  begin_part(context, "latent up-projections");
  const std::int64_t query_in = mla.q_lora_rank > 0 ? mla.q_lora_rank : model.hidden;
  parts.mla_up = linear(context, {.m = context.tokens, .n = query, .k = query_in}, precision);
  add(parts.mla_up,
      linear(context, {.m = context.tokens, .n = key_value, .k = mla.kv_lora_rank}, precision));
  const BlockTime up = parts.mla_up;
  add(parts.mla_up, rotary(context, query + key_value));
  begin_part(context, "projections");
  add(parts.projections, tensor_parallel_region(context, {.in = down,
                                                          .out = model.hidden,
                                                          .in_element_bytes = context.element_bytes,
                                                          .column = up,
                                                          .row = out}));
}

void add_attention(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  begin_part(context, "attention");
  parts.attention = core_attention(context, layer);
  begin_part(context, "projections");
  if (context.model().is_mla()) {
    add_mla(context, parts);
  } else {
    parts.projections = gqa_projections(context, layer);
  }
}

BlockTime activation(const BlockContext& context, double rows, std::int64_t width) {
  const LayerKernels& kernels = context.kernels;
  return memory_bound(context, rows * number(width),
                      context.model().gated_ffn ? kernels.gated : kernels.plain);
}

struct FfnTime {
  BlockTime time;
  double activation_s = 0;  // both as in LayerParts
  double last_s = 0;
};

FfnTime dense_ffn(const BlockContext& context, std::int64_t width) {
  const ModelSpec& model = context.model();
  const std::int64_t local = div_ceil(width, context.plan.tp);
  const std::int64_t fc1 = model.gated_ffn ? 2 * local : local;
  const Precision precision = context.plan.precision;
  const BlockTime in =
      linear(context, {.m = context.tokens, .n = fc1, .k = model.hidden}, precision);
  const BlockTime out =
      linear(context, {.m = context.tokens, .n = model.hidden, .k = local}, precision);
  const BlockTime region =
      tensor_parallel_region(context, {.in = model.hidden,
                                       .out = model.hidden,
                                       .in_element_bytes = gathered_element_bytes(context),
                                       .columns = model.gated_ffn ? 2 : 1,
                                       .column = in,
                                       .row = out});
  const BlockTime middle = activation(context, number(context.tokens), local);
  BlockTime time = in;
  add(time, out);
  add(time, middle);
  add(time, region);
  // What is gathered in front has as many elements as what is summed behind.
  const double gathered =
      context.plan.sequence_parallel ? gathered_element_bytes(context) / context.element_bytes : 0;
  const double summed_s = region.forward_tp_s / (1 + gathered);
  return {.time = time, .activation_s = middle.forward_s, .last_s = out.forward_s + summed_s};
}

// Rows that the busiest rank receives: bounded by capacity, or imbalanced.
double received_rows(const BlockContext& context) {
  const double capacity = context.job.profile.expert_rows().capacity;
  const double factor = capacity > 0 ? capacity : fullest_load(context.job, context.plan);
  return factor * number(context.sharded_tokens * context.model().moe.topk);
}

// Input and weight cast to fp32, and gradients back. cuBLAS splits the hidden width over the GPU.
BlockTime casting_router(const BlockContext& context) {
  const double inputs = number(context.sharded_tokens * context.model().hidden);
  BlockTime time;
  time.forward_flops = 2 * inputs * number(context.model().moe.num_experts);
  const GpuSpec& gpu = context.gpu();
  time.forward_s = time.forward_flops / (gpu.fp32_flops_per_s * gpu.constants->gemm_share);
  time.backward_input_s = time.forward_s;
  time.backward_weight_s = time.forward_s;
  note(context, PieceKind::kProduct, time);
  const KernelBytes cast = {.converted = context.element_bytes + 4};
  add(time, memory_bound(context, inputs, {.forward = cast, .backward = cast}));
  return time;
}

// In the activation type, but for fp8.
BlockTime router(const BlockContext& context) {
  const Precision precision = context.plan.precision;
  const auto casts = context.framework.casts_router;
  if (casts != nullptr && casts(context.job) && precision != Precision::kFp32) {
    return casting_router(context);
  }
  return linear(context,
                {.m = context.sharded_tokens,
                 .n = context.model().moe.num_experts,
                 .k = context.model().hidden},
                precision == Precision::kFp8 ? Precision::kBf16 : precision);
}

void add_moe(const BlockContext& context, LayerParts& parts) {
  const ModelSpec& model = context.model();
  const Plan& plan = context.plan;
  const MoeSpec& moe = model.moe;
  const double rows = received_rows(context);
  const double computed_rows = rows * number(plan.etp);
  const std::int64_t experts = div_ceil(moe.num_experts, plan.ep);
  const std::int64_t rows_per_expert =
      static_cast<std::int64_t>(std::ceil(computed_rows / number(experts)));
  const std::int64_t width = div_ceil(moe.expert_ffn, plan.etp);
  const std::int64_t fc1 = model.gated_ffn ? 2 * width : width;
  parts.routed = router(context);
  add(parts.routed, expert_choice(context));
  // In one launch, or one after the other.
  const bool grouped = launches_of_experts(context.job, context.framework.host).are_grouped;
  const auto add_products = [&](std::int64_t n, std::int64_t k) {
    const ProductShape shape = {
        .m = rows_per_expert, .n = n, .k = k, .count = grouped ? experts : 1};
    const BlockTime products =
        linear(context, shape, plan.precision,
               {.products = grouped ? 1 : experts, .gradients = grouped ? 1 : experts});
    add(parts.routed, products);
    return products.forward_s;
  };
  const std::int64_t seen = routed_width(model);
  add_products(fc1, seen);
  parts.routed_last_s = add_products(seen, width);
  if (moe.latent > 0) {
    for (const auto& [n, k] : {std::pair{moe.latent, model.hidden}, {model.hidden, moe.latent}}) {
      add(parts.routed,
          linear(context, {.m = context.sharded_tokens, .n = n, .k = k}, plan.precision));
    }
  }
  const BlockTime exchange = expert_exchange(context, rows);
  add(parts.routed, exchange);
  parts.routed_last_s += exchange.forward_ep_s / 2;  // the rows' way back
  parts.routed_activation = activation(context, computed_rows, width);
  if (model.gated_ffn) {
    add(parts.routed_activation,
        memory_bound(context, computed_rows * number(width), context.kernels.weighted));
  }
  if (moe.shared_ffn > 0) {
    begin_part(context, "shared experts");
    const FfnTime shared = dense_ffn(context, moe.shared_ffn);
    parts.shared = shared.time;
    parts.shared_activation_s = shared.activation_s;
    parts.shared_last_s = shared.last_s;
  }
}

// The exchanges of one microbatch's forward pass run beside the products of another's backward
// pass, and the reverse (Megatron-LM core/pipeline_parallel/combined_1f1b.py).
void hide_beside_microbatches(const BlockContext& context, LayerParts& parts) {
  const BlockTime layer = sum(parts);
  const double backward_s = layer.backward_input_s + layer.backward_weight_s;
  const BesideCost cost =
      context.job.profile.exposed_ep_share * exchange_cost(context, received_rows(context));
  BlockTime& routed = parts.routed;
  routed.forward_ep_s = beside_compute_s(cost, backward_s);
  routed.backward_ep_s = beside_compute_s(cost, layer.forward_s);
  note_visible_exchange(context, routed);
}

// Shared experts run on a stream of their own: their first linear layer is launched behind the
// exchange that brings the rows, the second behind the one that takes them back; in backward the
// other way round, as their places in the graph say (Megatron-LM core_v0.16.1
// core/transformer/moe/{token_dispatcher,shared_experts}.py).
void hide_beside_shared(const BlockContext& context, LayerParts& parts) {
  const double whole_s = parts.shared.forward_total_s();
  if (whole_s <= 0) {
    return;
  }
  const BesideCost one_way =
      context.job.profile.exposed_ep_share / 2 * exchange_cost(context, received_rows(context));
  const double last_share = parts.shared_last_s / whole_s;
  const auto visible_s = [&](double shared_s) {
    return beside_compute_s(one_way, last_share * shared_s) +
           beside_compute_s(one_way, (1 - last_share) * shared_s);
  };
  parts.routed.forward_ep_s = visible_s(whole_s);
  parts.routed.backward_ep_s = visible_s(parts.shared.backward_total_s());
  note_visible_exchange(context, parts.routed);
}

void hide_exchanges(const BlockContext& context, LayerParts& parts) {
  switch (context.overlaps.exchanges) {
    case ExchangeOverlap::kExposed: return;
    case ExchangeOverlap::kSharedExperts: return hide_beside_shared(context, parts);
    case ExchangeOverlap::kMicrobatches: return hide_beside_microbatches(context, parts);
  }
}

// Of a dense layer whose tokens go by pieces.
void add_visible_regions(const BlockContext& context, const LayerRegions& regions,
                         LayerParts& parts) {
  const VisibleRegions visible = visible_regions(regions, parts.attention.backward_input_s);
  add(parts.ffn, tensor_parallel(context, visible.ffn, all_of(regions.ffn)));
  parts.ffn_last_s += parts.ffn.forward_tp_s / 2;
  begin_part(context, "projections");
  add(parts.projections, tensor_parallel(context, visible.attention, all_of(regions.attention)));
}

}  // namespace

BlockTime sum(const LayerParts& parts) {
  BlockTime time;
  for (const BlockTime* part :
       {&parts.norms, &parts.projections, &parts.mla_up, &parts.attention, &parts.ffn,
        &parts.routed, &parts.routed_activation, &parts.shared}) {
    add(time, *part);
  }
  return time;
}

LayerParts layer_parts(const BlockContext& of_layer, const LayerSpec& layer) {
  LayerParts parts;
  LayerRegions regions;
  BlockContext context = of_layer;
  const bool by_pieces = goes_by_pieces(context);
  begin_part(context, "norms");
  parts.norms = norms(context);
  context.region = by_pieces ? &regions.attention : nullptr;
  if (layer.mixer == MixerKind::kAttention) {
    add_attention(context, layer, parts);
  }
  if ((layer.mixer != MixerKind::kAttention || layer.has_mamba_beside) &&
      context.framework.add_mixer != nullptr) {
    context.framework.add_mixer(context, layer, parts);
  }
  begin_part(context, layer.is_moe ? "experts" : "ffn");
  context.region = by_pieces ? &regions.ffn : nullptr;
  if (layer.is_moe) {
    add_moe(context, parts);
  }
  if (layer.has_ffn && (!layer.is_moe || context.model().moe.beside_dense)) {
    const FfnTime ffn = dense_ffn(context, context.model().ffn_of(layer));
    parts.ffn = ffn.time;
    parts.ffn_activation_s = ffn.activation_s;
    parts.ffn_last_s = ffn.last_s;
  }
  if (context.framework.add_beside_products != nullptr) {
    context.framework.add_beside_products(context, layer, parts);
  }
  if (by_pieces) {
    add_visible_regions(context, regions, parts);
  }
  if (layer.is_moe) {
    hide_exchanges(context, parts);
  }
  return parts;
}

}  // namespace shardplan
