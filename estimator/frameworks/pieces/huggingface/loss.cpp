#include "estimator/frameworks/pieces/huggingface/loss.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr std::int64_t kChunk = 256;  // TRL's _CHUNKED_LM_HEAD_CHUNK_SIZE

// A view, whose gradient is a view of that of the transposed tensor.
Tensor transposed(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  Tensor view = input;
  return node.finish(std::move(view), [](BackwardCall& call) {
    call.gradients[0].is_view = true;
    return std::move(call.gradients);
  });
}

// The entropy that is logged: the mask of tokens that count is the last tensor that is saved.
void log_entropy(Graph& graph, const Tensor& log_softmax, std::int64_t vocab) {
  const Tensor probabilities = eager::exponential(graph, log_softmax);
  Tensor sum;
  {
    const Tensor terms = eager::multiply(graph, probabilities, log_softmax);
    sum = eager::mean(graph, terms, vocab);
  }
  sum = eager::scale(graph, sum);
  const Tensor counts = graph.make(sum.elements, DType::kBool);
  sum = eager::multiply(graph, sum, counts);
}

Tensor chunk_loss(Graph& graph, const Tensor& chunk, const Tensor& weight, const HeadShape& shape) {
  const InRow row(graph.tape, kLogitsRow);
  const Tensor labels = graph.make(chunk.elements / shape.hidden, DType::kInt64);
  Tensor logits;
  {
    const Tensor wide = eager::to(graph, chunk, DType::kFp32);
    const Tensor columns = transposed(graph, eager::to(graph, weight, DType::kFp32));
    logits = eager::linear(graph, wide, columns,
                           {.inputs = shape.hidden,
                            .outputs = shape.vocab,
                            .flattens_input = false,
                            .is_function = false});
  }
  if (shape.scales_logits) {
    logits = eager::scale(graph, logits);
  }
  if (shape.caps_logits) {
    logits = eager::soft_capped(graph, logits);
  }
  const Tensor log_softmax = eager::log_softmax(graph, eager::to(graph, logits, DType::kFp32));
  Tensor loss = eager::nll_loss(graph, log_softmax, labels);
  log_entropy(graph, log_softmax, shape.vocab);
  return loss;
}

// A piece's loss in the forward pass keeps nothing; in the backward pass its gradient goes by way
// of the log-softmax, whose gradient is made beside it.
void play_chunk_forward(Graph& graph, std::int64_t elements, DType dtype) {
  const Tensor log_softmax = graph.make(elements, dtype);
}
void play_chunk_backward(Graph& graph, std::int64_t elements, DType dtype) {
  const Tensor log_softmax = graph.make(elements, dtype);
  const Tensor of_log_softmax = graph.make(elements, dtype);
  const Tensor of_logits = graph.make(elements, dtype);
}

template <typename Function>
void for_each_chunk(std::int64_t tokens, std::int64_t chunk, Function function) {
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    function(std::min(chunk, tokens - first));
  }
}

Tensor chunked_cross_entropy(Graph& graph, const Tensor& logits, const Tensor& labels,
                             std::int64_t vocab, std::int64_t chunk) {
  NodeBuilder node(graph, {&logits});
  if (node.is_needed()) {
    node.save(logits);
    node.save(labels);
  }
  const std::int64_t tokens = logits.elements / vocab;
  for_each_chunk(tokens, chunk, [&](std::int64_t of_chunk) {
    play_chunk_forward(graph, of_chunk * vocab, logits.dtype);
  });
  return node.finish(graph.make(tokens, logits.dtype), [=](BackwardCall& call) {
    Tensor over_logits = call.saved(0);
    for_each_chunk(tokens, chunk, [&](std::int64_t of_chunk) {
      play_chunk_backward(call.graph, of_chunk * vocab, over_logits.dtype);
    });
    return Tensors{std::move(over_logits)};
  });
}

// Labels behind one more of padding, and from the second on.
Tensor shifted_by_padding(Graph& graph, const Tensor& labels) {
  const InRow row(graph.tape, kTokensRow);
  const Tensor padded = graph.make(labels.elements, DType::kInt64);
  return graph.make(labels.elements, DType::kInt64);
}

// F.cross_entropy of each token.
Tensor token_losses(Graph& graph, const Tensor& logits, const Tensor& labels) {
  return eager::nll_losses(graph, eager::log_softmax(graph, logits), labels);
}

Tensor weighted_sum(Graph& graph, const Tensor& losses, const Tensor& weights) {
  const Tensor weighted = eager::multiply(graph, losses, weights);
  return eager::scale(graph, eager::sum(graph, weighted, weighted.elements));
}

// The entropy of the largest logits of each row, without a graph. torch.topk counts digits in
// blocks of 64 values for each of 256 threads, 256 counts of 16 bits a block (PyTorch
// aten/src/ATen/native/cuda/TensorTopK.cu mbtopk).
Tensor entropy_of_largest(Graph& graph, const Tensor& rows, std::int64_t vocab) {
  constexpr std::int64_t kLargest = 20;
  constexpr std::int64_t kBlock = 64 * 256;
  constexpr std::int64_t kCounts = 256;
  const std::int64_t tokens = rows.elements / vocab;
  Tensor largest;
  {
    const Tensor places = graph.make(tokens * kLargest, DType::kInt64);
    largest = graph.make(tokens * kLargest, rows.dtype);
    const Tensor counts = graph.make(tokens * div_ceil(vocab, kBlock) * kCounts, DType::kFp16);
  }
  const Tensor probabilities = graph.make(largest.elements, rows.dtype);
  return graph.make(tokens, rows.dtype);
}

// Of no token: the sum of nothing.
Tensor empty_loss(Graph& graph, const Tensor& logits) {
  return eager::scale(graph, eager::mean(graph, logits, logits.elements));
}

}  // namespace

Tensor chunked_loss(Graph& graph, const Tensor& hidden, const Tensor& weight,
                    const HeadShape& shape) {
  const InRow row(graph.tape, kLogitsRow);
  const std::int64_t tokens = shape.tokens - shape.sequences;  // the last of each predicts none
  if (tokens == 0) {
    return eager::scale(
        graph, eager::mean(graph, eager::to(graph, hidden, DType::kFp32), hidden.elements));
  }
  Tensor valid = eager::index(graph, hidden, tokens * shape.hidden);
  valid = eager::index(graph, valid, tokens * shape.hidden);
  Tensor loss;
  for (std::int64_t first = 0; first < tokens; first += kChunk) {
    const std::int64_t of_chunk = std::min(kChunk, tokens - first);
    const Tensor chunk = eager::slice(graph, valid, of_chunk * shape.hidden);
    const auto run = [&graph, &weight, shape](const Tensor& rows) {
      return chunk_loss(graph, rows, weight, shape);
    };
    const Tensor of_this = eager::checkpoint(graph, chunk, run);
    loss = loss.is_defined() ? eager::add(graph, loss, of_this) : of_this;
  }
  return eager::scale(graph, loss);
}

double num_loss_chunks(const Job& job, const Plan& plan) {
  return job.profile.head_loss == HeadLoss::kChunked
             ? number(div_ceil(plan.micro_batch * job.sequence_length, kChunk))
             : 0;
}

// triton.next_power_of_2; a chunk has no more than all tokens.
std::int64_t liger_chunk(const HeadShape& shape) {
  const std::int64_t share = div_ceil(shape.tokens, div_ceil(shape.vocab, shape.hidden));
  const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(share)));
  return std::min(shape.tokens, rounded);
}

Tensor fused_linear_loss(Graph& graph, const Tensor& hidden, const Tensor& weight,
                         const HeadShape& shape, bool adds_in_fp32) {
  const InRow row(graph.tape, kLogitsRow);
  const std::int64_t table = shape.hidden * shape.vocab;
  const bool trains = weight.requires_grad();
  const DType product = graph.autocast.value_or(hidden.dtype);
  const bool casts = weight.dtype != product;
  const Tensor of_hidden = graph.make(hidden.elements, hidden.dtype);
  Tensor of_weight;
  if (trains) {
    const InRow gradients(graph.tape, eager::kWeightGradientsRow);
    of_weight = graph.make(table, weight.dtype);
  }
  const Tensor losses = graph.make(shape.tokens, DType::kFp32);
  const auto cast_chunk = [&](std::int64_t elements) {
    return hidden.dtype == product ? Tensor{} : graph.make(elements, product);
  };
  Tensor logits;
  for (std::int64_t first = 0; first < shape.tokens; first += liger_chunk(shape)) {
    const std::int64_t tokens = std::min(liger_chunk(shape), shape.tokens - first);
    {
      const InRow casting(graph.tape, eager::kCastRow);
      const Tensor columns = casts ? graph.make(table, product) : Tensor{};  // of a view: not kept
      const Tensor chunk = cast_chunk(tokens * shape.hidden);
      const InRow logits_row(graph.tape, kLogitsRow);
      logits = graph.make_product(tokens * shape.vocab, product);
    }
    {
      const eager::NoGrad no_grad(graph);
      const Tensor w = graph.cast_weight(weight);
      const Tensor of_chunk = graph.make(tokens * shape.hidden, product);
    }
    if (trains) {
      const Tensor chunk = cast_chunk(tokens * shape.hidden);
      const Tensor of_this = graph.make(table, product);
      const Tensor wide = adds_in_fp32 ? graph.make(table, DType::kFp32) : Tensor{};
    }
  }
  logits = {};
  NodeBuilder node(graph, {&hidden, &weight});
  if (node.is_needed()) {
    node.save(of_hidden);
    if (trains) {
      node.save(of_weight);
    }
  }
  return node.finish(graph.make(1, DType::kFp32), [=](BackwardCall& call) {
    return Tensors{call.saved(0), trains ? call.saved(1) : Tensor{}};
  });
}

Tensor cut_cross_entropy(Graph& graph, const Tensor& hidden, const Tensor& weight,
                         const HeadShape& shape) {
  const InRow row(graph.tape, kLogitsRow);
  const Tensor w = graph.cast_weight(weight);
  const Tensor x = graph.autocast ? eager::to(graph, hidden, *graph.autocast) : hidden;
  NodeBuilder node(graph, {&x, &w});
  const Tensor sums = graph.make(shape.tokens, DType::kFp32);
  if (node.is_needed()) {
    node.save(x);
    node.save(w);
    node.save(sums);
  }
  const bool trains = w.requires_grad();
  const std::int64_t elements = x.elements;
  const std::int64_t table = w.elements;
  const DType dtype = x.dtype;
  return node.finish(graph.make(1, DType::kFp32), [=](BackwardCall& call) {
    const Tensor saved_x = call.saved(0);
    const Tensor saved_w = call.saved(1);
    const Tensor saved_sums = call.saved(2);
    Tensor of_hidden = call.graph.make(elements, dtype);
    Tensor of_weight;
    if (trains) {
      const InRow gradients(call.graph.tape, eager::kWeightGradientsRow);
      of_weight = call.graph.make(table, dtype);
    }
    return Tensors{std::move(of_hidden), std::move(of_weight)};
  });
}

Tensor liger_cross_entropy(Graph& graph, const Tensor& logits, bool is_scaled) {
  NodeBuilder node(graph, {&logits});
  if (node.is_needed()) {
    node.save(logits);
  }
  return node.finish(graph.make(1, logits.dtype), [is_scaled](BackwardCall& call) {
    Tensor over_logits = call.saved(0);
    if (is_scaled) {
      over_logits = call.graph.make(over_logits.elements, over_logits.dtype);
    }
    return Tensors{std::move(over_logits)};
  });
}

// Without the last token the rows of several sequences do not lie behind each other, and are
// copied.
Tensor loss_again(Graph& graph, const Tensor& logits, const Tensor& labels, const HeadShape& shape,
                  bool uses_liger) {
  const Tensor wide = eager::to(graph, logits, DType::kFp32);
  if (!shape.has_last_tokens) {
    return eager::scale(graph, uses_liger ? liger_cross_entropy(graph, wide, true)
                                          : eager::cross_entropy(graph, wide, labels));
  }
  const std::int64_t tokens = shape.tokens - shape.sequences;
  if (tokens == 0) {
    return empty_loss(graph, wide);
  }
  Tensor rows = eager::slice(graph, wide, tokens * shape.vocab);
  Tensor shifted = labels.viewed(tokens);
  if (shape.sequences > 1) {
    const InRow row(graph.tape, kTokensRow);
    shifted = graph.make(tokens, DType::kInt64);
  }
  if (shape.sequences > 1) {
    rows = eager::laid_out(graph, rows);
  }
  const Tensor losses = uses_liger ? liger_cross_entropy(graph, rows, true)
                                   : eager::cross_entropy(graph, rows, shifted);
  return eager::scale(graph, losses);
}

namespace {

// Of logits in fp32. weights_of(losses, wide) makes a weight for each token that counts, without a
// graph, of those tokens' losses and of all logits.
template <class Function>
Tensor weighted_loss(Graph& graph, const Tensor& logits, const Tensor& labels, std::int64_t tokens,
                     Function weights_of) {
  const Tensor wide = eager::to(graph, logits, DType::kFp32);
  if (tokens == 0) {
    return empty_loss(graph, wide);
  }
  const Tensor losses = token_losses(graph, wide, shifted_by_padding(graph, labels));
  const Tensor counted = eager::index(graph, losses, tokens);
  Tensor weights;
  {
    const eager::NoGrad no_grad(graph);
    weights = weights_of(counted, wide);
  }
  return weighted_sum(graph, counted, weights);
}

}  // namespace

Tensor loss_by_probability(Graph& graph, const Tensor& logits, const Tensor& labels,
                           const HeadShape& shape) {
  return weighted_loss(graph, logits, labels, shape.tokens - shape.sequences,
                       [&graph](const Tensor& losses, const Tensor&) {
                         return eager::exponential(graph, eager::scale(graph, losses));
                       });
}

Tensor loss_by_entropy(Graph& graph, const Tensor& logits, const Tensor& labels,
                       const HeadShape& shape) {
  const std::int64_t tokens = shape.tokens - shape.sequences;
  return weighted_loss(graph, logits, labels, tokens, [&](const Tensor&, const Tensor& wide) {
    return entropy_of_largest(graph, eager::index(graph, wide, tokens * shape.vocab), shape.vocab);
  });
}

Tensor loss_by_entropy_of_rows(Graph& graph, const Tensor& logits, const Tensor& labels,
                               const HeadShape& shape) {
  const std::int64_t tokens = shape.tokens - shape.sequences;
  if (tokens == 0) {
    return empty_loss(graph, logits);
  }
  Tensor rows = eager::slice(graph, logits, tokens * shape.vocab);
  if (shape.sequences > 1) {
    rows = eager::laid_out(graph, rows);
  }
  Tensor entropy;
  {
    const eager::NoGrad no_grad(graph);
    const Tensor counted = eager::index(graph, rows, rows.elements);
    entropy = entropy_of_largest(graph, eager::to(graph, counted, DType::kFp32), shape.vocab);
  }
  const Tensor counted = eager::index(graph, rows, rows.elements);
  return weighted_sum(graph, token_losses(graph, counted, labels.viewed(tokens)), entropy);
}

Tensor loss_per_token(Graph& graph, const Tensor& logits, const Tensor& labels,
                      const HeadShape& shape, std::int64_t chunk) {
  const Tensor losses = chunk > 0 ? chunked_cross_entropy(graph, logits, labels, shape.vocab, chunk)
                                  : eager::cross_entropy(graph, logits, labels);
  return eager::scale(graph, losses);
}

}  // namespace shardplan::huggingface
