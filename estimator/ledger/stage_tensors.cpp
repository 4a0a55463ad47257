#include "estimator/ledger/stage_tensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "estimator/ledger/layer_blocks.h"
#include "estimator/ledger/padded_buffer.h"
#include "estimator/plan/expert_routing.h"

namespace shardplan {
namespace {

std::vector<ParameterTensor> tensors_of(const Job& job, BlockKind kind) {
  const ModelSpec& model = job.model;
  switch (kind) {
    case BlockKind::kEmbedding: return embedding_parameters(model);
    case BlockKind::kFirstLayer: return layer_parameters(model, model.layers.front());
    case BlockKind::kLastLayer: return layer_parameters(model, model.layers.back());
    case BlockKind::kDenseLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer:
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: return layer_parameters(model, layer_of(job, kind));
    case BlockKind::kMtp: return mtp_parameters(model);
    case BlockKind::kHead:
    case BlockKind::kLogits: return head_parameters(model);
    case BlockKind::kCast:
    case BlockKind::kLoss:
    case BlockKind::kSentOutput: return {};
  }
  return {};
}

struct LocalTensor {
  std::int64_t elements = 0;
  bool is_expert = false;
  bool is_linear = false;  // and not an expert's
};

std::vector<LocalTensor> local_tensors(const Job& job, const Plan& plan,
                                       const std::vector<ParameterTensor>& tensors) {
  std::vector<LocalTensor> local;
  for (const ParameterTensor& tensor : tensors) {
    local.push_back({.elements = local_elements(job, plan, tensor),
                     .is_expert = tensor.sharding == Sharding::kExpert,
                     .is_linear = is_dense_linear(tensor)});
  }
  return local;
}

LocalParameters sum_of(const std::vector<LocalTensor>& tensors) {
  LocalParameters sum;
  for (const LocalTensor& tensor : tensors) {
    (tensor.is_expert ? sum.expert : sum.dense) += tensor.elements;
    sum.linear += tensor.is_linear ? tensor.elements : 0;
  }
  return sum;
}

bool is_layer(BlockKind kind) {
  using enum BlockKind;
  return kind == kDenseLayer || kind == kMoeLayer || kind == kOtherLayer || kind == kFurtherLayer ||
         kind == kFirstLayer || kind == kLastLayer || kind == kFirstMoeLayer;
}

// Tensors of every kind of block and, where layers of one kind vary, of every layer.
struct LocalTensors {
  std::array<std::vector<LocalTensor>, kNumBlockKinds> of_kind;
  std::vector<std::vector<LocalTensor>> of_layers;  // by ParameterKinds::kinds
  std::vector<std::size_t> kind_of_layer;           // none: layers do not vary

  const std::vector<LocalTensor>& of(BlockKind kind, std::int64_t layer) const {
    return is_layer(kind) && !kind_of_layer.empty()
               ? of_layers[kind_of_layer[static_cast<std::size_t>(layer)]]
               : of_kind[static_cast<std::size_t>(kind)];
  }
};

LocalTensors tensors_of_stage(const Job& job, const Plan& plan, const StageLayout& stage) {
  LocalTensors local;
  std::array<bool, kNumBlockKinds> needed{};
  needed[static_cast<std::size_t>(BlockKind::kEmbedding)] = true;
  for (const ChunkLayout& chunk : stage.chunks) {
    for (const Unit& unit : chunk.units) {
      for (const BlockRun& run : unit.blocks) { needed[static_cast<std::size_t>(run.kind)] = true; }
    }
  }
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i]) {
      local.of_kind[i] = local_tensors(job, plan, tensors_of(job, static_cast<BlockKind>(i)));
    }
  }
  if (layers_vary(job.model)) {
    ParameterKinds kinds = parameter_kinds(job.model);
    local.kind_of_layer = std::move(kinds.of_layer);
    for (const LayerSpec& layer : kinds.kinds) {
      local.of_layers.push_back(local_tensors(job, plan, layer_parameters(job.model, layer)));
    }
  }
  return local;
}

// Calls visit(kind, layer) for every block, the last one first; `layer` counts those of the model.
template <class Visit>
void visit_blocks_backwards(const ChunkLayout& chunk, Visit visit) {
  std::int64_t layer = chunk.first_layer;
  for (const Unit& unit : chunk.units) {
    for (const BlockRun& run : unit.blocks) {
      layer += is_layer(run.kind) ? run.count * unit.count : 0;
    }
  }
  for (auto unit = chunk.units.rbegin(); unit != chunk.units.rend(); ++unit) {
    for (std::int64_t i = 0; i < unit->count; ++i) {
      for (auto run = unit->blocks.rbegin(); run != unit->blocks.rend(); ++run) {
        for (std::int64_t block = 0; block < run->count; ++block) {
          layer -= is_layer(run->kind) ? 1 : 0;
          visit(run->kind, layer);
        }
      }
    }
  }
}

struct PaddedBuffers {
  PaddedBuffer dense;
  PaddedBuffer linear;
  PaddedBuffer expert;
};

void add_chunk(StageTensors& tensors, const LocalTensors& local, const ChunkLayout& chunk,
               bool linear_apart, PaddedBuffers& buffers) {
  visit_blocks_backwards(chunk, [&](BlockKind kind, std::int64_t layer) {
    for (const LocalTensor& tensor : local.of(kind, layer)) {
      (tensor.is_expert ? tensors.expert : tensors.dense) += tensor.elements;
      tensors.dense_linear += tensor.is_linear ? tensor.elements : 0;
      PaddedBuffer& dense = tensor.is_linear && linear_apart ? buffers.linear : buffers.dense;
      (tensor.is_expert ? buffers.expert : dense).add(tensor.elements);
      tensors.largest_dense_tensor =
          std::max(tensors.largest_dense_tensor, tensor.is_expert ? 0 : tensor.elements);
    }
  });
  if (chunk.has_embedding_copy) {  // the token table without learned positions
    const LocalTensor& table = local.of(BlockKind::kEmbedding, 0).front();
    tensors.dense += table.elements;
    buffers.dense.add(table.elements);
  }
}

void sum_layers(StageTensors& tensors, const LocalTensors& local, const StageLayout& stage) {
  const auto add = [&tensors](const LocalParameters& layer, std::int64_t count) {
    tensors.layers_dense += count * layer.dense;
    tensors.layers_expert += count * layer.expert;
    if (layer.total() > tensors.largest_layer_dense + tensors.largest_layer_expert) {
      tensors.largest_layer_dense = layer.dense;
      tensors.largest_layer_expert = layer.expert;
    }
  };
  const bool varies = !local.kind_of_layer.empty();
  for (const BlockKind kind : {BlockKind::kDenseLayer, BlockKind::kMoeLayer, BlockKind::kMtp}) {
    const std::int64_t count = count_blocks(stage, kind);
    if (count > 0 && !(varies && is_layer(kind))) {
      add(sum_of(local.of(kind, 0)), count);
    }
  }
  for (const ChunkLayout& chunk : stage.chunks) {
    visit_blocks_backwards(chunk, [&](BlockKind kind, std::int64_t layer) {
      if (varies && is_layer(kind)) {
        add(sum_of(local.of(kind, layer)), 1);
      }
    });
  }
}

// Of a gated delta net: the product that makes all that is mixed, and that of the output.
void add_delta_shapes(std::vector<WeightShape>& shapes, const Job& job, const Plan& plan) {
  const DeltaSpec& delta = job.model.delta;
  const std::int64_t h = job.model.hidden;
  const std::int64_t made = 2 * (delta.key_width() + delta.value_width() + delta.value_heads);
  shapes.push_back({.rows = div_ceil(made, plan.tp), .columns = h});
  shapes.push_back({.rows = h, .columns = div_ceil(delta.value_width(), plan.tp)});
}

// Of Mamba-2: the product that makes gate, values, both matrices and steps, and that of the output.
void add_mamba_shapes(std::vector<WeightShape>& shapes, const Job& job, const Plan& plan) {
  const MambaSpec& mamba = job.model.mamba;
  const std::int64_t h = job.model.hidden;
  const std::int64_t made = 2 * (mamba.inner + mamba.groups * mamba.state) + mamba.num_heads;
  shapes.push_back({.rows = div_ceil(made, plan.tp), .columns = h});
  shapes.push_back({.rows = h, .columns = div_ceil(mamba.inner, plan.tp)});
}

void add_attention_shapes(std::vector<WeightShape>& shapes, const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const MlaSpec& mla = model.mla;
  const std::int64_t h = model.hidden;
  const std::int64_t heads = div_ceil(model.num_heads, plan.tp);
  if (!model.is_mla()) {
    const std::int64_t query = heads * model.head_dim;
    const std::int64_t key_value = 2 * div_ceil(model.num_kv_heads, plan.tp) * model.head_dim;
    const std::int64_t gates = model.attention_gate == AttentionGate::kPerElement ? 2 : 1;
    shapes.push_back({.rows = gates * query + key_value, .columns = h});
    shapes.push_back({.rows = h, .columns = query});
    return;
  }
  const std::int64_t query = heads * mla.qk_head_dim();
  const std::int64_t key_value = heads * (mla.qk_nope_head_dim + mla.v_head_dim);
  if (mla.q_lora_rank > 0) {
    shapes.push_back({.rows = mla.q_lora_rank, .columns = h});
    shapes.push_back({.rows = query, .columns = mla.q_lora_rank});
  } else {
    shapes.push_back({.rows = query, .columns = h});
  }
  shapes.push_back({.rows = mla.kv_lora_rank + mla.qk_rope_head_dim, .columns = h});
  shapes.push_back({.rows = key_value, .columns = mla.kv_lora_rank});
  shapes.push_back({.rows = h, .columns = heads * mla.v_head_dim});
}

// Of an indexer of latent attention, whole on every rank.
void add_indexer_shapes(std::vector<WeightShape>& shapes, const ModelSpec& model) {
  const IndexerSpec& indexer = model.indexer;
  shapes.push_back(
      {.rows = indexer.num_heads * indexer.head_dim, .columns = model.mla.q_lora_rank});
  shapes.push_back({.rows = indexer.head_dim, .columns = model.hidden});
  shapes.push_back({.rows = indexer.num_heads, .columns = model.hidden});
}

void add_mixer_shapes(std::vector<WeightShape>& shapes, const Job& job, const Plan& plan,
                      MixerKind mixer) {
  switch (mixer) {
    case MixerKind::kNone: return;
    case MixerKind::kGatedDelta: return add_delta_shapes(shapes, job, plan);
    case MixerKind::kMamba2: return add_mamba_shapes(shapes, job, plan);
    default: return add_attention_shapes(shapes, job, plan);
  }
}

struct FfnWidths {
  std::int64_t outer = 0;  // of its input and output
  std::int64_t inner = 0;
};

void add_ffn_shapes(std::vector<WeightShape>& shapes, const ModelSpec& model,
                    const FfnWidths& widths, std::int64_t count) {
  if (widths.inner > 0) {
    const std::int64_t pieces = model.gated_ffn ? 2 : 1;
    shapes.push_back({.rows = pieces * widths.inner, .columns = widths.outer, .count = count});
    shapes.push_back({.rows = widths.outer, .columns = widths.inner, .count = count});
  }
}

// Of the projections around routed experts, whole on every rank; MoELayer makes them before the
// experts (Megatron-LM core_v0.16.1 core/transformer/moe/moe_layer.py).
void add_latent_shapes(std::vector<WeightShape>& shapes, const ModelSpec& model) {
  const std::int64_t latent = model.moe.latent;
  if (latent > 0) {
    shapes.push_back({.rows = latent, .columns = model.hidden});
    shapes.push_back({.rows = model.hidden, .columns = latent});
  }
}

}  // namespace

StageTensors stage_tensors(const Job& job, const Plan& plan, const StageLayout& stage,
                           const ContiguousBuffers& cut) {
  StageTensors tensors;
  const LocalTensors local = tensors_of_stage(job, plan, stage);
  const std::int64_t dense_shard = dense_shard_size(job, plan);
  const std::int64_t expert_shard = expert_state_shards(job, plan);
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    const bool has_buckets = stage.pp_rank == 0 && chunk == 0;
    const std::int64_t dense_bucket = has_buckets ? cut.dense_bucket : 0;
    PaddedBuffers buffers = {
        .dense = PaddedBuffer(dense_shard, dense_bucket),
        .linear = PaddedBuffer(dense_shard, dense_bucket),
        .expert = PaddedBuffer(expert_shard, has_buckets ? cut.expert_bucket : 0)};
    const std::int64_t before = tensors.dense + tensors.expert;
    const std::int64_t linear_before = tensors.dense_linear + tensors.expert;
    add_chunk(tensors, local, stage.chunks[chunk], cut.linear_apart, buffers);
    const std::int64_t elements = tensors.dense + tensors.expert - before;
    if (elements > tensors.largest_chunk) {
      tensors.largest_chunk = elements;
      tensors.largest_chunk_linear = tensors.dense_linear + tensors.expert - linear_before;
    }
    tensors.chunks.push_back({.dense = buffers.dense.close() + buffers.linear.close(),
                              .expert = buffers.expert.close()});
    tensors.dense_padding += buffers.dense.padding();
    tensors.linear_padding += buffers.linear.padding();
    tensors.expert_padding += buffers.expert.padding();
  }
  sum_layers(tensors, local, stage);
  return tensors;
}

LocalParameters block_parameters(const Job& job, const Plan& plan, BlockKind kind) {
  return sum_of(local_tensors(job, plan, tensors_of(job, kind)));
}

std::vector<WeightShape> weight_shapes(const Job& job, const Plan& plan, BlockKind kind) {
  const ModelSpec& model = job.model;
  const LayerSpec layer = layer_of(job, kind);
  std::vector<WeightShape> shapes;
  switch (kind) {
    case BlockKind::kEmbedding:
    case BlockKind::kCast:
    case BlockKind::kLoss:
    case BlockKind::kSentOutput: return shapes;
    case BlockKind::kHead:
    case BlockKind::kLogits:
      shapes.push_back(
          {.rows = div_exact(padded_vocab(job, plan), plan.tp), .columns = model.hidden});
      return shapes;
    case BlockKind::kMtp:
      shapes.push_back({.rows = div_ceil(model.hidden, plan.tp), .columns = 2 * model.hidden});
      break;
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kDenseLayer:
    case BlockKind::kMoeLayer:
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: break;
  }
  add_mixer_shapes(shapes, job, plan, layer.mixer);
  if (layer.has_indexer && model.is_mla()) {
    add_indexer_shapes(shapes, model);
  }
  if (!layer.has_ffn) {
    return shapes;
  }
  if (!layer.is_moe) {
    add_ffn_shapes(shapes, model, {model.hidden, div_ceil(model.ffn, plan.tp)}, 1);
    return shapes;
  }
  add_latent_shapes(shapes, model);
  const std::vector<WeightShape> experts = expert_weight_shapes(job, plan);
  shapes.insert(shapes.end(), experts.begin(), experts.end());
  add_ffn_shapes(shapes, model, {model.hidden, div_ceil(model.moe.shared_ffn, plan.tp)}, 1);
  return shapes;
}

std::vector<WeightShape> expert_weight_shapes(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  std::vector<WeightShape> shapes;
  add_ffn_shapes(shapes, model, {routed_width(model), div_ceil(model.moe.expert_ffn, plan.etp)},
                 div_ceil(model.moe.num_experts, plan.ep));
  return shapes;
}

}  // namespace shardplan
