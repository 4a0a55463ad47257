// Where the weights of a rank lie. The weights of a unit (embedding, layer, head) that have the
// same groups form one flat buffer, so that one collective reduces their gradients; those that no
// group divides form one for the whole chunk, so that one kernel updates them. Parameters start at
// multiples of 64 elements, as in Megatron-LM core/distributed/param_and_grad_buffer.py, and a
// buffer ends at a multiple of 128 * shards: shards start at 256 bytes.
#include "validator/lower/parameters.h"

#include <algorithm>
#include <span>

#include "validator/lower/update.h"

namespace shardplan {
namespace {

constexpr std::int64_t kParameterMultiple = 64;  // elements
constexpr std::int64_t kBufferMultiple = 128;    // elements

// Rows of a parameter that are one logical tensor.
struct LogicalRows {
  ParameterPart part = {};
  std::int64_t row = 0;  // of the parameter
};

struct Parameter {
  PlacedWeight* weight = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<LogicalRows> logical = {};
  std::int64_t start = 0;  // element of the flat buffer
};

ParameterPart part_of(const std::string& logical, std::int64_t rows, std::int64_t cols) {
  return {.logical = logical, .rows = rows, .cols = cols};
}

// Output features divided over tp: rows of ours are columns of the logical [inputs, outputs].
ParameterPart column_parallel(const Lowering& l, const std::string& logical, std::int64_t rows) {
  ParameterPart part = part_of(logical, rows, l.sizes.hidden);
  part.first_col = l.at.tp * rows;
  part.transposed = true;
  return part;
}

// Input features divided over tp: columns of ours are rows of the logical one.
ParameterPart row_parallel(const Lowering& l, const std::string& logical, std::int64_t cols) {
  ParameterPart part = part_of(logical, l.sizes.hidden, cols);
  part.first_row = l.at.tp * cols;
  part.transposed = true;
  return part;
}

Parameter single(PlacedWeight& weight, const ParameterPart& part) {
  return {.weight = &weight, .rows = part.rows, .cols = part.cols, .logical = {{.part = part}}};
}

Parameter stacked(PlacedWeight& weight, const std::vector<ParameterPart>& parts) {
  Parameter parameter{.weight = &weight, .cols = parts.front().cols};
  for (const ParameterPart& part : parts) {
    parameter.logical.push_back({.part = part, .row = parameter.rows});
    parameter.rows += part.rows;
  }
  return parameter;
}

// Rows of the vocabulary's shard that exist; the rest is padding.
ParameterPart vocabulary_part(const Lowering& l, const std::string& logical) {
  const std::int64_t real =
      std::clamp<std::int64_t>(l.job.model.vocab - l.sizes.first_vocab_row, 0, l.sizes.vocab_rows);
  ParameterPart part = part_of(logical, real, l.sizes.hidden);
  part.transposed = logical == "head";
  (part.transposed ? part.first_col : part.first_row) = l.sizes.first_vocab_row;
  return part;
}

Parameter vocabulary(const Lowering& l, PlacedWeight& weight, const std::string& logical) {
  Parameter parameter = single(weight, vocabulary_part(l, logical));
  parameter.rows = l.sizes.vocab_rows;
  return parameter;
}

std::string prefix(const LayerWeights& w) {
  return "layers." + std::to_string(w.layer) + ".";
}

std::vector<Parameter> layer_matrices(const Lowering& l, LayerWeights& w) {
  const LocalSizes& s = l.sizes;
  const std::string name = prefix(w);
  std::vector<Parameter> matrices = {
      stacked(w.qkv, {column_parallel(l, name + "attention.q", s.query_width()),
                      column_parallel(l, name + "attention.k", s.kv_width()),
                      column_parallel(l, name + "attention.v", s.kv_width())}),
      single(w.projection, row_parallel(l, name + "attention.o", s.query_width())),
  };
  const bool has_experts = l.has_experts(w.layer);
  const std::int64_t width = has_experts ? s.shared_ffn : s.ffn;
  if (width > 0) {
    const std::string ffn = name + (has_experts ? "shared." : "ffn.");
    matrices.push_back(stacked(w.gate_up, {column_parallel(l, ffn + "gate", width),
                                           column_parallel(l, ffn + "up", width)}));
    matrices.push_back(single(w.down, row_parallel(l, ffn + "down", width)));
  }
  return matrices;
}

Parameter router(const Lowering& l, LayerWeights& w) {
  ParameterPart part = part_of(prefix(w) + "router", l.job.model.moe.num_experts, l.sizes.hidden);
  part.transposed = true;
  return single(w.router, part);
}

// This rank's experts one below the other; their width is divided over etp.
std::vector<Parameter> expert_matrices(const Lowering& l, LayerWeights& w) {
  const LocalSizes& s = l.sizes;
  const std::int64_t first_column = l.expert_member % l.plan.etp * s.expert_ffn;
  const std::int64_t first_expert = l.expert_member / l.plan.etp * s.experts;
  std::vector<ParameterPart> gate_up;
  std::vector<ParameterPart> down;
  for (std::int64_t e = first_expert; e < first_expert + s.experts; ++e) {
    const std::string name = prefix(w) + "experts." + std::to_string(e) + ".";
    for (const char* piece : {"gate", "up"}) {
      gate_up.push_back(part_of(name + piece, s.expert_ffn, s.hidden));
      gate_up.back().first_col = first_column;
      gate_up.back().transposed = true;
    }
    down.push_back(part_of(name + "down", s.hidden, s.expert_ffn));
    down.back().first_row = first_column;
    down.back().transposed = true;
  }
  return {stacked(w.expert_gate_up, gate_up), stacked(w.expert_down, down)};
}

bool is_tied_copy(const Lowering& l, const ModelChunk& chunk) {
  return l.job.model.tied_embeddings && chunk.has_head && !chunk.has_embedding;
}

// Which parameters a flat buffer holds, and where its sections lie.
struct Layout {
  std::vector<Parameter> parameters = {};
  FlatBuffer buffer = {};

  void add(Parameter parameter) {
    parameter.start = round_up(buffer.elements, kParameterMultiple);
    buffer.elements = parameter.start + parameter.rows * parameter.cols;
    parameters.push_back(std::move(parameter));
  }
  void end_matrices() { buffer.copy_begin = buffer.elements; }
  void end_copy() { buffer.routers_begin = round_up(buffer.elements, kParameterMultiple); }
  void end_routers() { buffer.norms_begin = round_up(buffer.elements, kParameterMultiple); }
  void end() { buffer.elements = round_up(buffer.elements, buffer.num_shards * kBufferMultiple); }
};

// What a buffer covers of its chunk.
struct Extent {
  bool embedding = false;
  std::int64_t first_layer = 0;  // within the chunk
  std::int64_t num_layers = 0;
  bool head = false;
};

bool ties_on_one_rank(const Lowering& l, const ModelChunk& chunk) {
  return l.job.model.tied_embeddings && chunk.has_embedding && chunk.has_head;
}

// Whether weights of these groups form a buffer per unit.
bool has_units(const DataGroups& groups) {
  return groups.shard >= 0;
}

std::vector<Extent> extents(const Lowering& l, const ModelChunk& chunk, const DataGroups& groups) {
  if (!has_units(groups)) {
    return {
        {.embedding = chunk.has_embedding, .num_layers = chunk.num_layers, .head = chunk.has_head}};
  }
  const bool ties = ties_on_one_rank(l, chunk);
  std::vector<Extent> units;
  if (chunk.has_embedding) {
    units.push_back({.embedding = true, .head = ties});
  }
  for (std::int64_t i = 0; i < chunk.num_layers; ++i) {
    units.push_back({.first_layer = i, .num_layers = 1});
  }
  if (chunk.has_head && !ties) {
    units.push_back({.head = true});
  }
  return units;
}

Layout empty_layout(const Lowering& l, const DataGroups& groups) {
  Layout layout{.buffer = {.groups = groups}};
  if (groups.shard >= 0) {
    const Program& program = l.program();
    const std::vector<std::int64_t>& ranks =
        program.groups[static_cast<std::size_t>(groups.shard)].ranks;
    layout.buffer.num_shards = static_cast<std::int64_t>(ranks.size());
    layout.buffer.shard = std::ranges::find(ranks, program.rank) - ranks.begin();
  }
  return layout;
}

// Ends take the first cell; of the layers the last takes the second, those before it take turns.
std::size_t cell_of(const ChunkWeights& w, const Extent& extent) {
  const bool is_layer = !extent.embedding && !extent.head;
  return is_layer && (w.chunk.num_layers - 1 - extent.first_layer) % 2 == 0 ? 1 : 0;
}

std::span<LayerWeights> layers_of(ChunkWeights& w, const Extent& extent) {
  return std::span(w.layers).subspan(static_cast<std::size_t>(extent.first_layer),
                                     static_cast<std::size_t>(extent.num_layers));
}

void add_norms(const Lowering& l, ChunkWeights& w, const Extent& extent, Layout& layout) {
  const auto add_norm = [&](PlacedWeight& weight, const std::string& name) {
    layout.add(single(weight, part_of(name, 1, l.sizes.hidden)));
  };
  for (LayerWeights& layer : layers_of(w, extent)) {
    add_norm(layer.attention_norm, prefix(layer) + "attention.norm");
    add_norm(layer.ffn_norm, prefix(layer) + "ffn.norm");
  }
  if (extent.head) {
    add_norm(w.final_norm, "final_norm");
  }
}

Layout dense_layout(const Lowering& l, ChunkWeights& w, const Extent& extent) {
  Layout layout = empty_layout(l, l.groups.dense);
  layout.buffer.cell = cell_of(w, extent);
  if (extent.embedding) {
    layout.add(vocabulary(l, w.embedding, "embedding"));
  }
  for (LayerWeights& layer : layers_of(w, extent)) {
    for (Parameter& parameter : layer_matrices(l, layer)) { layout.add(std::move(parameter)); }
  }
  if (extent.head && !l.job.model.tied_embeddings) {
    layout.add(vocabulary(l, w.head, "head"));
  }
  layout.end_matrices();
  if (extent.head && is_tied_copy(l, w.chunk)) {
    layout.add(vocabulary(l, w.head, "embedding"));
  }
  layout.end_copy();
  for (LayerWeights& layer : layers_of(w, extent)) {
    if (l.has_experts(layer.layer)) {
      layout.add(router(l, layer));
    }
  }
  layout.end_routers();
  add_norms(l, w, extent, layout);
  if (has_units(l.groups.dense) && extent.embedding && shares_embedding(l, w)) {
    layout.buffer.elements = layout.buffer.norms_begin + l.sizes.hidden;  // as long as its copy's
  }
  layout.end();
  return layout;
}

// Matrices alone.
Layout expert_layout(const Lowering& l, ChunkWeights& w, const Extent& extent) {
  Layout layout = empty_layout(l, l.groups.expert);
  for (LayerWeights& layer : layers_of(w, extent)) {
    if (l.has_experts(layer.layer)) {
      for (Parameter& parameter : expert_matrices(l, layer)) { layout.add(std::move(parameter)); }
    }
  }
  layout.end();
  FlatBuffer& buffer = layout.buffer;
  buffer.is_expert = true;
  buffer.cell = 2 + cell_of(w, extent);
  buffer.copy_begin = buffer.routers_begin = buffer.norms_begin = buffer.elements;
  return layout;
}

// Elements of a part, which starts at element `start` of the parameters, in a tensor of the buffer.
ParameterRange range_in(const FlatBuffer& buffer, const View& tensor, std::int64_t begin,
                        std::int64_t end, std::int64_t start, std::int64_t count) {
  const std::int64_t first = std::clamp<std::int64_t>(begin - start, 0, count);
  const std::int64_t last = std::clamp<std::int64_t>(end - start, first, count);
  return {.tensor = tensor.tensor,
          .offset = start + first - buffer.begin_of(tensor),
          .begin = first,
          .end = last};
}

void describe(Lowering& l, const FlatBuffer& buffer, const Parameter& parameter) {
  for (const LogicalRows& rows : parameter.logical) {
    ParameterPart part = rows.part;
    const std::int64_t start = parameter.start + rows.row * parameter.cols;
    const std::int64_t count = part.rows * part.cols;
    const auto range = [&](const View& tensor, const View& extent) {
      return range_in(buffer, tensor, buffer.begin_of(extent), buffer.end_of(extent), start, count);
    };
    // Between two steps the rest of weights that are gathered late is out of date.
    part.weight = range(buffer.weight, buffer.is_gathered_late() ? buffer.master : buffer.weight);
    // Reduced where the optimizer reads it.
    part.gradient = range(buffer.gradient, buffer.master);
    part.master = range(buffer.master, buffer.master);
    l.builder.program().parameters.push_back(part);
  }
}

View matrix_in(const View& flat, const Parameter& parameter) {
  return {.tensor = flat.tensor,
          .offset = parameter.start,
          .rows = parameter.rows,
          .cols = parameter.cols,
          .stride = parameter.cols};
}

void place_tensors(Lowering& l, FlatBuffer& buffer) {
  const std::string prefix = buffer.is_expert ? "expert_" : "";
  const auto flat = [&](Component component, const std::string& name, DType dtype,
                        std::int64_t elements) {
    return l.builder.persistent({.component = component,
                                 .name = prefix + name,
                                 .dtype = dtype,
                                 .rows = 1,
                                 .cols = elements});
  };
  const auto from_stage = [&](std::int64_t zero) {
    return l.plan.zero >= zero ? buffer.shard_elements() : buffer.elements;
  };
  const Plan& plan = l.plan;
  buffer.weight = flat(Component::kParameters, "weights", DType::kBf16, from_stage(3));
  buffer.gradient = flat(Component::kGradients, "main_gradients", plan.grad_dtype, from_stage(2));
  buffer.master = flat(Component::kOptimizer, "master_weights", plan.master_dtype, from_stage(1));
  buffer.exp_avg = flat(Component::kOptimizer, "exp_avg", plan.exp_avg_dtype, from_stage(1));
  buffer.exp_avg_sq =
      flat(Component::kOptimizer, "exp_avg_sq", plan.exp_avg_sq_dtype, from_stage(1));
}

// One of every layer and end in every microbatch.
std::int64_t gradient_passes(const Lowering& l, const Extent& extent) {
  return (extent.num_layers + (extent.embedding ? 1 : 0) + (extent.head ? 1 : 0)) *
         num_microbatches(l.job, l.plan);
}

// The embedding computes next to nothing that the first layer's gather could hide behind.
bool begins_step(const ChunkWeights& w, const Extent& extent) {
  return w.chunk.has_embedding &&
         (extent.embedding || (extent.num_layers > 0 && extent.first_layer == 0));
}

void place_buffer(Lowering& l, ChunkWeights& w, const Extent& extent, Layout layout) {
  FlatBuffer& buffer = layout.buffer;
  place_tensors(l, buffer);
  buffer.passes_left = gradient_passes(l, extent);
  buffer.begins_step = begins_step(w, extent);
  for (const Parameter& parameter : layout.parameters) {
    *parameter.weight = {.weight = matrix_in(buffer.weight, parameter),
                         .gradient = matrix_in(buffer.gradient, parameter)};
    buffer.parameters.push_back({.weight = parameter.weight,
                                 .begin = parameter.start,
                                 .end = parameter.start + parameter.rows * parameter.cols});
    describe(l, buffer, parameter);
  }
  if (extent.embedding && ties_on_one_rank(l, w.chunk)) {
    FlatParameter table = buffer.parameters.front();
    w.head = *table.weight;
    table.weight = &w.head;
    buffer.parameters.insert(buffer.parameters.begin(), table);
  }
  const std::size_t index = w.buffers.size();
  w.buffers.push_back(buffer);
  if (extent.embedding) {
    w.embedding_unit.push_back(index);
  }
  for (LayerWeights& layer : layers_of(w, extent)) { layer.unit.push_back(index); }
  if (extent.head) {
    w.head_unit.push_back(index);
  }
}

void place_chunk(Lowering& l, ChunkWeights& w) {
  for (const Extent& extent : extents(l, w.chunk, l.groups.dense)) {
    place_buffer(l, w, extent, dense_layout(l, w, extent));
  }
  for (Extent extent : extents(l, w.chunk, l.groups.expert)) {
    extent.embedding = extent.head = false;
    if (Layout experts = expert_layout(l, w, extent); !experts.parameters.empty()) {
      place_buffer(l, w, extent, std::move(experts));
    }
  }
}

}  // namespace

void place_weights(Lowering& l) {
  const LayerPartition partition = partition_layers(l.job, l.plan);
  l.chunks.resize(static_cast<std::size_t>(l.plan.vpp));
  for (std::int64_t c = 0; c < l.plan.vpp; ++c) {
    ChunkWeights& w = l.chunks[static_cast<std::size_t>(c)];
    w.chunk = partition.chunks[static_cast<std::size_t>(position_of_chunk(l.plan, l.at.pp, c))];
    for (std::int64_t i = 0; i < w.chunk.num_layers; ++i) {
      w.layers.push_back({.layer = w.chunk.first_layer + i});
    }
    place_chunk(l, w);
  }
}

}  // namespace shardplan
