#include "estimator/frameworks/pieces/huggingface/mixers/delta_rule.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/mixers/chunks.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr std::int64_t kChunk = 64;

// A copy in fp32 that lies heads before tokens.
Tensor in_fp32(Graph& graph, const Tensor& input) {
  return eager::to(graph, input, DType::kFp32);
}

// x * rsqrt(sum(x * x) + eps) of every head.
Tensor unit_rows(Graph& graph, const Tensor& input, std::int64_t width) {
  Tensor sum;
  {
    const Tensor squares = eager::multiply(graph, input, input);
    sum = eager::sum(graph, squares, width);
  }
  sum = eager::shift(graph, sum);
  const Tensor root = eager::reciprocal_root(graph, sum);
  return eager::multiply(graph, input, root);
}

// Differences between all decays of a chunk, later ones filled with minus infinity, and their
// exponentials.
Tensor pairwise_decay(Graph& graph, const Tensor& decay) {
  const Tensor mask = graph.make(kChunk * kChunk, DType::kBool);
  const std::int64_t pairs = decay.elements * kChunk;
  const std::int64_t rows = decay.elements;
  Tensor differences;
  {
    NodeBuilder node(graph, {&decay, &decay});
    differences = node.finish(graph.make(pairs, DType::kFp32), [=](BackwardCall& call) {
      Tensor negated = call.graph.make(pairs, DType::kFp32);
      Tensor of_rows = call.graph.make(rows, DType::kFp32);
      Tensor of_columns = call.graph.make(rows, DType::kFp32);
      return Tensors{std::move(of_rows), std::move(of_columns)};
    });
  }
  differences = filled(graph, differences, mask, pairs);
  return eager::exponential(graph, differences);
}

// linalg.solve_triangular with ones on the diagonal: saves the system and the solution; the
// system's gradient is a product, negated, of which the part below the diagonal is copied
// (linalg_solve_triangular_backward).
Tensor solved(Graph& graph, const Tensor& system, const Tensor& right) {
  NodeBuilder node(graph, {&system, &right});
  const Tensor output = graph.make(right.elements, DType::kFp32);
  if (node.is_needed()) {
    node.save(system);
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor saved_system = call.saved(0);
    const Tensor solution = call.saved(1);
    Graph& g = call.graph;
    Tensor of_right = g.make(solution.elements, DType::kFp32);
    Tensor of_system = g.make_product(saved_system.elements, DType::kFp32);
    of_system = g.make(saved_system.elements, DType::kFp32);
    of_system = g.make(saved_system.elements, DType::kFp32);
    return Tensors{std::move(of_system), std::move(of_right)};
  });
}

// A chunk is written into its place of a tensor of all (CopySlices): the gradient of all is copied,
// and the chunk's out of it; what the chunk replaced has none.
Tensor with_chunk(Graph& graph, const Tensor& all, const Tensor& chunk) {
  NodeBuilder node(graph, {&all, &chunk});
  const std::int64_t of_all = all.elements;
  const std::int64_t of_chunk = chunk.elements;
  Tensor output = all;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    Graph& g = call.graph;
    Tensor gradient = g.make(of_all, DType::kFp32);
    Tensor chunk_gradient = g.make(of_chunk, DType::kFp32);
    if (call.wants(0)) {
      const Tensor zeros = g.make(of_chunk, DType::kFp32);
    }
    return Tensors{std::move(gradient), std::move(chunk_gradient)};
  });
}

// What chunks are made of before the state goes from one to the next.
struct Chunks {
  Tensor query, key, within;  // decayed; the last: attention within a chunk
  Tensor values, decayed_keys;
  Tensor decay;  // of every chunk
};

// A chunk is multiplied with the state of those before it, which it leaves to the next.
Tensor over_chunks(Graph& graph, const Chunks& chunks, const DeltaSizes& sizes,
                   std::int64_t count) {
  const std::int64_t heads = chunks.decay.elements / count;  // of all sequences
  const std::int64_t of_state = heads * sizes.widths.key_head_dim * sizes.widths.value_head_dim;
  const std::int64_t of_value = chunks.values.elements / count;
  Tensor state = graph.make(of_state, DType::kFp32);
  Tensor all = graph.make(chunks.values.elements, DType::kFp32);
  const auto part = [&](const Tensor& tensor) {
    return eager::slice(graph, tensor, tensor.elements / count);
  };
  Tensor value, before;
  for (std::int64_t i = 0; i < count; ++i) {
    {
      const Tensor given = part(chunks.values);
      const Tensor known = attention_product(graph, part(chunks.decayed_keys), state, of_value);
      value = eager::subtract(graph, given, known);
    }
    before = attention_product(graph, part(chunks.query), state, of_value);
    {
      Tensor sum;
      {
        const Tensor within = attention_product(graph, part(chunks.within), value, of_value);
        sum = eager::add(graph, before, within);
      }
      all = with_chunk(graph, all, sum);
    }
    const Tensor kept = eager::multiply(graph, state, part(chunks.decay));
    const Tensor added = attention_product(graph, part(chunks.key), value, of_state);
    state = eager::add(graph, kept, added);
  }
  return all;
}

}  // namespace

Tensor delta_rule(Graph& graph, const DeltaInputs& inputs, const DeltaSizes& sizes) {
  const std::int64_t count = div_ceil(sizes.sequence, kChunk);
  const auto with_padding = [&](const Tensor& tensor) {
    return padded(graph, tensor, tensor.elements / sizes.sequence * count * kChunk);
  };
  Tensor query = in_fp32(graph, inputs.query);
  Tensor key = in_fp32(graph, inputs.key);
  Tensor value = in_fp32(graph, inputs.value);
  Tensor rate = in_fp32(graph, inputs.rate);
  query = unit_rows(graph, query, sizes.widths.key_head_dim);
  key = unit_rows(graph, key, sizes.widths.key_head_dim);
  query = eager::scale(graph, query);
  {
    const Tensor unpadded_query = std::exchange(query, with_padding(query));
    const Tensor unpadded_key = std::exchange(key, with_padding(key));
    value = with_padding(value);
  }
  rate = with_padding(rate);
  const Tensor decay = cumulative(graph, with_padding(inputs.decay));
  // Their gradients come from the solver with columns before rows.
  const Tensor rated_values = eager::copied_back(graph, eager::multiply(graph, value, rate));
  const Tensor rated_keys = eager::copied_back(graph, eager::multiply(graph, key, rate));
  const std::int64_t pairs = decay.elements * kChunk;
  const Tensor pairwise = pairwise_decay(graph, decay);
  const auto decayed_product = [&](const Tensor& left, const Tensor& right) {
    return eager::multiply(graph, attention_product(graph, left, right, pairs), pairwise);
  };
  const Tensor system = decayed_product(rated_keys, key);
  Chunks chunks;
  chunks.within = decayed_product(query, key);
  const Tensor decayed = eager::multiply(graph, rated_keys, eager::exponential(graph, decay));
  chunks.values = solved(graph, system, rated_values);
  chunks.decayed_keys = solved(graph, system, decayed);
  chunks.query = eager::multiply(graph, query, eager::exponential(graph, decay));
  const Tensor last = eager::slice(graph, decay, decay.elements / kChunk);
  chunks.key =
      eager::multiply(graph, key, eager::exponential(graph, eager::subtract(graph, last, decay)));
  chunks.decay = eager::exponential(graph, last);
  Tensor output = over_chunks(graph, chunks, sizes, count);
  output = eager::laid_out(graph, output);
  output = eager::slice(graph, output, output.elements / (count * kChunk) * sizes.sequence);
  return eager::to(graph, output, inputs.query.dtype);
}

}  // namespace shardplan::huggingface
