// Where the weights of a rank lie. The weights of a chunk that have the same groups form one flat
// buffer, so that one collective reduces their gradients; parameters start at multiples of 64
// elements and a buffer ends at a multiple of lcm(shards, 128), as in Megatron-LM
// core/distributed/param_and_grad_buffer.py.
#include <algorithm>
#include <numeric>

#include "validator/lowering.h"

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
  Weight* weight = nullptr;
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

Parameter single(Weight& weight, const ParameterPart& part) {
  return {.weight = &weight, .rows = part.rows, .cols = part.cols, .logical = {{.part = part}}};
}

Parameter stacked(Weight& weight, const std::vector<ParameterPart>& parts) {
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

Parameter vocabulary(const Lowering& l, Weight& weight, const std::string& logical) {
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
  void end() {
    buffer.elements = round_up(buffer.elements, std::lcm(buffer.num_shards, kBufferMultiple));
  }
};

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

Layout dense_layout(const Lowering& l, ChunkWeights& w) {
  Layout layout = empty_layout(l, l.groups.dense);
  if (w.chunk.has_embedding) {
    layout.add(vocabulary(l, w.embedding, "embedding"));
  }
  for (LayerWeights& layer : w.layers) {
    for (Parameter& parameter : layer_matrices(l, layer)) { layout.add(std::move(parameter)); }
  }
  if (w.chunk.has_head && !l.job.model.tied_embeddings) {
    layout.add(vocabulary(l, w.head, "head"));
  }
  layout.end_matrices();
  if (is_tied_copy(l, w.chunk)) {
    layout.add(vocabulary(l, w.head, "embedding"));
  }
  layout.end_copy();
  for (LayerWeights& layer : w.layers) {
    if (l.has_experts(layer.layer)) {
      layout.add(router(l, layer));
    }
  }
  layout.end_routers();
  const auto add_norm = [&](Weight& weight, const std::string& name) {
    layout.add(single(weight, part_of(name, 1, l.sizes.hidden)));
  };
  for (LayerWeights& layer : w.layers) {
    const std::string name = "layers." + std::to_string(layer.layer) + ".";
    add_norm(layer.attention_norm, name + "attention.norm");
    add_norm(layer.ffn_norm, name + "ffn.norm");
  }
  if (w.chunk.has_head) {
    add_norm(w.final_norm, "final_norm");
  }
  layout.end();
  return layout;
}

// Matrices alone.
Layout expert_layout(const Lowering& l, ChunkWeights& w) {
  Layout layout = empty_layout(l, l.groups.expert);
  for (LayerWeights& layer : w.layers) {
    if (l.has_experts(layer.layer)) {
      for (Parameter& parameter : expert_matrices(l, layer)) { layout.add(std::move(parameter)); }
    }
  }
  layout.end();
  FlatBuffer& buffer = layout.buffer;
  buffer.is_expert = true;
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
    part.weight = range(buffer.weight, buffer.weight);
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
  const std::int64_t share = l.plan.zero == 0 ? buffer.elements : buffer.shard_elements();
  buffer.weight = flat(Component::kParameters, "weights", DType::kBf16, buffer.elements);
  buffer.gradient =
      flat(Component::kGradients, "main_gradients", l.plan.grad_dtype, buffer.elements);
  buffer.master = flat(Component::kOptimizer, "master_weights", l.plan.master_dtype, share);
  buffer.exp_avg = flat(Component::kOptimizer, "exp_avg", l.plan.exp_avg_dtype, share);
  buffer.exp_avg_sq = flat(Component::kOptimizer, "exp_avg_sq", l.plan.exp_avg_sq_dtype, share);
}

void place_buffer(Lowering& l, ChunkWeights& w, Layout layout) {
  place_tensors(l, layout.buffer);
  for (const Parameter& parameter : layout.parameters) {
    *parameter.weight = {.weight = matrix_in(layout.buffer.weight, parameter),
                         .gradient = matrix_in(layout.buffer.gradient, parameter)};
    describe(l, layout.buffer, parameter);
  }
  w.buffers.push_back(layout.buffer);
}

void place_chunk(Lowering& l, ChunkWeights& w) {
  place_buffer(l, w, dense_layout(l, w));
  if (Layout experts = expert_layout(l, w); !experts.parameters.empty()) {
    place_buffer(l, w, std::move(experts));
  }
  if (w.chunk.has_head && w.chunk.has_embedding && l.job.model.tied_embeddings) {
    w.head = w.embedding;
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
