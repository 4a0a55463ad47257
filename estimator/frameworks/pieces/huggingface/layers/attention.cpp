#include "estimator/frameworks/pieces/huggingface/layers/attention.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/gathered_attention.h"
#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/eager/ring_attention.h"
#include "estimator/frameworks/pieces/huggingface/fused_adapters.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/layers/own_heads.h"
#include "estimator/frameworks/pieces/huggingface/sink_attention.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;
using eager::Tensors;

namespace {

bool has_rotary(const LayerRun& run, std::size_t place) {
  return run.job.model.layers[place].has_rotary;
}

bool takes_liger_rotary(const LayerRun& run) {
  return run.uses_liger() && run.family.liger != LigerUse::kNoRotary;
}

bool has_flash_sinks(const LayerRun& run, std::size_t place) {
  return run.job.model.layers[place].has_sinks &&
         run.job.profile.attention_backend == AttentionBackend::kFlash;
}

// Queries that were put together have their heads in front of tokens, and so has the output of
// the fused kernels.
bool lays_out_heads(const LayerRun& run, std::size_t place) {
  return !run.family.norms_turned_heads && !is_eager_attention(run.job) && !run.gathers_heads() &&
         !has_flash_sinks(run, place) && has_rotary(run, place) && !takes_liger_rotary(run) &&
         !run.hub_kernels().rotary && run.family.rotary != RotaryKind::kHalves &&
         !casts_heads(run.family.rotary);
}

Tensor liger_turned(const LayerRun& run, const Rotary& rotary, const Tensor& input) {
  const Tensor rows = run.family.has_one_qkv ? eager::laid_out(run.graph, input) : input;
  return eager::liger_rotate(run.graph, rows, rotary.cosines, rotary.sines);
}

void turn(const LayerRun& run, std::size_t place, const Rotary& rotary, Heads& heads) {
  if (!has_rotary(run, place) || run.fuses_norm_rotary()) {
    return;
  }
  if (takes_liger_rotary(run)) {  // of contiguous rows
    Tensor query = liger_turned(run, rotary, heads.query);
    heads.key = liger_turned(run, rotary, heads.key);
    heads.query = std::move(query);
    return;
  }
  if (run.hub_kernels().rotary) {
    Tensor query = turned_copy(run.graph, heads.query);
    heads.key = turned_copy(run.graph, heads.key);
    heads.query = std::move(query);
    return;
  }
  const Rotary tables = of_layer(run.graph, run.family.rotary, rotary);
  const Heads given = heads;
  if (run.family.rotary == RotaryKind::kWide) {
    heads.query = eager::to(run.graph, heads.query, DType::kFp32);
    heads.key = eager::to(run.graph, heads.key, DType::kFp32);
  }
  const auto turned = [&](const Tensor& input) {
    const std::int64_t part = input.elements / run.sizes.head_dim * rotary_width(run.job.model);
    return rotate(run.graph, run.family.rotary, input, part, tables);
  };
  Tensor query = turned(heads.query);
  heads.key = turned(heads.key);
  heads.query = std::move(query);
  if (casts_heads(run.family.rotary)) {
    heads.query = eager::to(run.graph, heads.query, given.query.dtype);
    heads.key = eager::to(run.graph, heads.key, given.key.dtype);
  }
}

// The query projection makes the gate, too: views of both, of which the gate is copied.
Heads gated_heads(const LayerRun& run, Layer& layer, const Tensor& input) {
  const Tensor rows = project(run.graph, layer.query, input);
  const eager::Tensors parts = eager::split(run.graph, rows, rows.elements / 2);
  Heads heads;
  heads.gate = eager::laid_out(run.graph, parts[1]);
  // Liger's norm reads and writes contiguous rows (ops/utils.py ensure_contiguous).
  const bool is_liger = run.uses_liger();
  const Tensor query = is_liger ? eager::laid_out(run.graph, parts[0]) : parts[0];
  heads.query = apply_norm(run, layer.query_norm, query, true);
  const Tensor product = project(run.graph, layer.key, input);
  const Tensor key = is_liger ? product : eager::copied_back(run.graph, product);
  heads.key = apply_norm(run, layer.key_norm, key, true);
  heads.value = project(run.graph, layer.value, input);
  return heads;
}

// AfmoeAttention, whose gate is a projection behind the others.
Heads heads_beside_gate(const LayerRun& run, Layer& layer, const Tensor& input) {
  Heads heads;
  const Tensor query = project(run.graph, layer.query, input);
  const Tensor key = project(run.graph, layer.key, input);
  heads.value = project(run.graph, layer.value, input);
  heads.gate = project(run.graph, layer.gate, input);
  heads.query = apply_norm(run, layer.query_norm, eager::copied_back(run.graph, query), true);
  heads.key = apply_norm(run, layer.key_norm, eager::copied_back(run.graph, key), true);
  return heads;
}

// FalconAttention._split_heads: queries are a view, keys and values what a list of places picks;
// of several heads all three are laid out, keys and values once for every query.
Heads indexed_heads(const LayerRun& run, const Tensor& all) {
  eager::Graph& graph = run.graph;
  const std::int64_t of_head = run.sizes.tokens * run.sizes.head_dim;
  const std::int64_t query = of_head * run.sizes.query_heads;
  Heads heads;
  heads.query = eager::slice(graph, all, query);
  heads.key = eager::index(graph, all, of_head * run.sizes.key_heads);
  heads.value = eager::index(graph, all, of_head * run.sizes.key_heads);
  if (run.sizes.key_heads > 1) {
    const AttentionSizes sizes = run.attention_sizes();
    heads.query = eager::laid_out(graph, heads.query);
    heads.key = repeat_heads(graph, heads.key, sizes);
    heads.value = repeat_heads(graph, heads.value, sizes);
  }
  return heads;
}

// Of one projection of all three.
Heads parts_of_one(const LayerRun& run, Layer& layer, const Tensor& input) {
  const Tensor all = project(run.graph, layer.query_key_value, input);
  const std::int64_t of_head = run.sizes.tokens * run.sizes.head_dim;
  if (run.family.qkv_parts == QkvParts::kIndexed) {
    return indexed_heads(run, all);
  }
  const bool is_of_rows = run.family.qkv_parts == QkvParts::kRows;
  if (is_of_rows || run.family.qkv_parts == QkvParts::kSplit) {
    const std::int64_t key = of_head * run.sizes.key_heads;
    Tensors parts =
        eager::split_into(run.graph, is_of_rows ? all : eager::copied_back(run.graph, all),
                          {of_head * run.sizes.query_heads, key, key});
    return {.query = std::move(parts[0]),
            .key = std::move(parts[1]),
            .value = std::move(parts[2]),
            .gate = {}};
  }
  const auto part = [&](std::int64_t heads) {
    return eager::copied_back(run.graph, eager::slice(run.graph, all, of_head * heads));
  };
  Heads heads;
  heads.query = part(run.sizes.query_heads);
  heads.key = part(run.sizes.key_heads);
  heads.value = eager::slice(run.graph, all, of_head * run.sizes.key_heads);
  return heads;
}

Heads projected_heads(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (run.family.has_one_qkv) {
    return parts_of_one(run, layer, input);
  }
  using enum HeadNorms;
  const ModelSpec& model = run.job.model;
  const auto normed = [&](Norm& norm, const Tensor& heads, bool is_here) {
    return is_here ? apply_norm(run, norm, heads, true) : heads;
  };
  const auto normed_heads = [&](Norm& norm, const Tensor& heads, HeadNorms place) {
    const bool is_of_heads = model.qk_norm && !model.norms_all_heads;
    return normed(norm, heads, is_of_heads && run.family.head_norms == place);
  };
  // Rows become heads in front of tokens.
  const auto project_heads = [&](Linear& linear, Norm& norm) {
    const Tensor rows =
        normed(norm, project(run.graph, linear, input), model.qk_norm && model.norms_all_heads);
    return normed_heads(norm, eager::copied_back(run.graph, rows), kByProjection);
  };
  Heads heads;
  if (run.fuses_adapters() && have_adapters({&layer.query, &layer.key, &layer.value})) {
    Tensors outputs = fused_projections(run.graph, {&layer.query, &layer.key, &layer.value}, input);
    heads.query = normed_heads(layer.query_norm, eager::copied_back(run.graph, outputs[0]),
                               run.family.head_norms);
    heads.key = normed_heads(layer.key_norm, eager::copied_back(run.graph, outputs[1]),
                             run.family.head_norms);
    heads.value = std::move(outputs[2]);
    return heads;
  }
  heads.query = project_heads(layer.query, layer.query_norm);
  heads.key = project_heads(layer.key, layer.key_norm);
  heads.value = project(run.graph, layer.value, input);
  heads.query = normed_heads(layer.query_norm, heads.query, kBehindProjections);
  heads.key = normed_heads(layer.key_norm, heads.key, kBehindProjections);
  return heads;
}

Heads heads_of(const LayerRun& run, Layer& layer, std::size_t place, const Rotary& rotary,
               const Tensor& input) {
  if (run.family.norms_turned_heads) {
    return heads_behind_tokens(run, layer, place, rotary, input);
  }
  if (run.family.has_value_norm) {
    return heads_with_value_norm(run, layer, place, rotary, input);
  }
  if (run.job.model.is_mla()) {
    Heads heads = latent_heads(run.graph, layer.latent, layer.query, input, rotary,
                               {.tokens = run.sizes.tokens,
                                .heads = run.sizes.query_heads,
                                .widths = run.job.model.mla,
                                .rotary = run.family.rotary,
                                .turns = run.job.model.layers[place].has_rotary});
    if (run.family.scales_queries) {
      heads.query = eager::scale(run.graph, heads.query);
    }
    return heads;
  }
  const bool has_gate = run.job.model.attention_gate == AttentionGate::kPerElement;
  Heads heads = has_gate && run.family.gates_apart ? heads_beside_gate(run, layer, input)
                : has_gate                         ? gated_heads(run, layer, input)
                                                   : projected_heads(run, layer, input);
  if (run.family.scales_parts) {
    heads.key = eager::scale(run.graph, heads.key);
  }
  turn(run, place, rotary, heads);
  if (run.family.scales_queries) {
    heads.query = eager::scale(run.graph, heads.query);
  }
  if (run.job.model.qk_norm && run.family.head_norms == HeadNorms::kBehindRotary) {
    heads.query = apply_norm(run, layer.query_norm, heads.query, true);
    heads.key = apply_norm(run, layer.key_norm, heads.key, true);
  }
  return heads;
}

// A cache puts keys and values behind those that it has, which are none (cache_utils.py
// DynamicLayer.update).
void cached(const LayerRun& run, Tensor& heads) {
  heads = eager::laid_out(run.graph, heads);
  run.cache->push_back(heads.detached());
}

// MuonClip looks at the norms of queries and keys, each in fp32 (ms-swift 3602360
// swift/optimizers/muonclip.py _MaxLogitsTracker.enable_sdpa).
void bound_products(const LayerRun& run, const Tensor& query, const Tensor& key) {
  for (const Tensor* each : {&query, &key}) {
    const Tensor wide = eager::to(run.graph, each->detached(), DType::kFp32);
    const Tensor norms = run.graph.make(each->elements / run.job.model.qk_head_dim(), DType::kFp32);
  }
}

Tensor attended(const LayerRun& run, const Layer& layer, std::size_t place, const Heads& heads,
                const Tensor& mask) {
  const auto& [query, key, value, gate] = heads;
  AttentionSizes sizes = run.attention_sizes_of(run.job.model.layers[place]);
  if (run.family.qkv_parts == QkvParts::kIndexed && sizes.key_heads > 1) {
    sizes.key_heads = sizes.query_heads;
  }
  if (run.gathers_heads()) {
    return eager::gathered_attention(run.graph, query, key, value,
                                     {.tokens = sizes.tokens,
                                      .query_heads = sizes.query_heads,
                                      .key_heads = sizes.key_heads,
                                      .ranks = run.sizes.cp});
  }
  if (run.sizes.rings) {  // whose output and gradient of values lie by heads
    const Tensor output =
        eager::ring_attention(run.graph, query, key, eager::copied_back(run.graph, value),
                              {.tokens = sizes.tokens,
                               .query_heads = sizes.query_heads,
                               .key_heads = sizes.key_heads,
                               .ranks = run.sizes.cp,
                               .gathers = run.gathers_keys});
    return eager::laid_out(run.graph, output);
  }
  if (has_flash_sinks(run, place)) {
    return flash_attention_with_sinks(run.graph, query, key, value, sizes);
  }
  if (layer.sinks.data.is_defined()) {
    return sink_attention(run.graph, query, key, value, mask, layer.sinks.data, sizes);
  }
  if (run.job.optimizer == OptimizerKind::kMuonClip) {
    bound_products(run, query, key);
  }
  if (is_broadcast_attention(run.job)) {
    return broadcast_attention(run.graph, query, key, value, mask, sizes);
  }
  if (run.family.attends_in_fp32) {
    return fp32_attention(run.graph, query, key, value, mask, sizes);
  }
  return is_eager_attention(run.job)
             ? eager_attention(run.graph, query, key, value, mask, sizes)
             : scaled_dot_product(run.graph, query, key, value, mask, sizes);
}

// axolotl 067b021 monkeypatch/gemma4_hybrid_mask.py: layers without a window make a mask of
// documents for themselves, of bytes three times and of numbers, where tokens are packed.
Tensor mask_of(const LayerRun& run, std::size_t place, const Shared& shared) {
  if (run.job.profile.attention_backend != AttentionBackend::kFlashInWindows ||
      run.job.model.layers[place].attention_window > 0 || !run.job.profile.packed_sequences) {
    return shared.mask;
  }
  const InRow row(run.graph.tape, kMaskRow);
  const std::int64_t pairs = run.sizes.tokens * run.sizes.sequence;
  Tensor allowed;
  {
    const Tensor same = run.graph.make(pairs, DType::kBool);
    const Tensor causal = run.graph.make(run.sizes.sequence * run.sizes.sequence, DType::kBool);
    allowed = run.graph.make(pairs, DType::kBool);
  }
  Tensor mask = run.graph.make(pairs, DType::kBf16);
  const Tensor forbidden = run.graph.make(pairs, DType::kBool);
  return mask;
}

Tensor attention_output(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                        const Tensor& input) {
  const InRow row(run.graph.tape, kAttentionRow);
  Heads heads = heads_of(run, layer, place, shared.rotary, input);
  if (run.cache != nullptr) {
    cached(run, heads.key);
    cached(run, heads.value);
  }
  const bool is_divided = run.sizes.cp > 1 && !run.sizes.rings;
  if (is_divided) {
    for (Tensor* each : {&heads.query, &heads.key, &heads.value}) {
      *each = exchanged(run.graph, *each);
    }
  }
  Tensor output = attended(run, layer, place, heads, mask_of(run, place, shared));
  if (is_divided) {
    output = exchanged(run.graph, output);
  }
  if (lays_out_heads(run, place)) {
    output = eager::laid_out(run.graph, output);
  }
  if (heads.gate.is_defined()) {
    output = eager::multiply(run.graph, output, eager::sigmoid(run.graph, heads.gate));
  }
  return run.fuses_adapters() && layer.output.rank > 0
             ? fused_projections(run.graph, {&layer.output}, output).front()
             : project(run.graph, layer.output, output);
}

}  // namespace

Tensor attention(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                 const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "self_attn", {}}, input, [&](const Tensor& x) {
    return attention_output(run, layer, place, shared, x);
  });
}

}  // namespace shardplan::huggingface
