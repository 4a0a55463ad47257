#include "estimator/frameworks/pieces/eager/ring_attention.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::eager {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kCounters = 256;  // bytes of cuDNN's backward, as fused_attention has them

// Elements that a rank works with.
struct Elements {
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t sums = 0;  // one of each query and head
};

// Those of a round: whole queries on the first half of another rank's keys, or the second half of
// the queries on whole keys, where the keys are of a later rank.
Elements of_round(const Elements& all, bool is_of_later_rank) {
  return is_of_later_rank ? Elements{.query = all.query / 2, .key = all.key, .sums = all.sums / 2}
                          : Elements{.query = all.query, .key = all.key / 2, .sums = all.sums};
}

// The played rank is the last but one: only the last round's keys are of a later rank.
bool is_of_later_rank(const RingShape& shape, std::int64_t round) {
  return round + 1 == shape.ranks;
}

// Keys and values on their way, in one tensor: from all ranks at once, or from the rank before.
class Rotation {
 public:
  Rotation(Graph& graph, const RingShape& shape, std::int64_t pair, DType dtype)
      : graph_(graph), shape_(shape), pair_(pair), dtype_(dtype) {}

  // Puts both together and sends them; `joined` stays until the next is made.
  void exchange(Tensor& joined) {
    const InRow row(graph_.tape, kRingExchangeRow);
    joined = graph_.make(pair_, dtype_);
    if (shape_.gathers && !arriving_.is_defined()) {
      arriving_ = graph_.make(shape_.ranks * pair_, dtype_);
    } else if (!shape_.gathers) {
      arriving_ = graph_.make(pair_, dtype_);
    }
  }
  Tensor arrived() const { return arriving_; }

 private:
  Graph& graph_;
  const RingShape& shape_;
  const std::int64_t pair_;
  const DType dtype_;
  Tensor arriving_;
};

// out - sigmoid(block_lse - lse) * (out - block), and lse - logsigmoid(lse - block_lse), of a
// round's queries. Halves are put together with what the others had.
void merge(Graph& graph, const Elements& all, const Elements& round, Tensor& merged,
           Tensor& merged_sums) {
  const auto wide = [&](std::int64_t elements) { return graph.make(elements, DType::kFp32); };
  const Tensor block = wide(round.query);
  Tensor next;
  {
    Tensor scaled;
    {
      Tensor share = wide(round.sums);
      share = wide(round.sums);
      const Tensor difference = wide(round.query);
      scaled = wide(round.query);
    }
    next = wide(round.query);
  }
  Tensor sums = wide(round.sums);
  sums = wide(round.sums);
  sums = wide(round.sums);
  if (round.query == all.query) {
    merged_sums = std::move(sums);
    merged = std::move(next);
  } else {
    merged_sums = wide(all.sums);
    merged = wide(all.query);
  }
}

struct Attended {
  Tensor output;
  Tensor sums;
};

// Copies of keys and values lie in the order of the kernel's; from the second round on those of
// other ranks take their place.
Attended play_forward(Graph& graph, const Elements& of, DType dtype, const RingShape& shape) {
  Tensor keys = graph.make(of.key, dtype);
  Tensor values = graph.make(of.key, dtype);
  Rotation rotation(graph, shape, 2 * of.key, dtype);
  const auto attend = [&](const Elements& round) {
    return Attended{.output = graph.make(round.query, dtype),
                    .sums = graph.make(round.sums, DType::kFp32)};
  };
  {
    Tensor joined;
    rotation.exchange(joined);
  }
  Attended block = attend(of);
  Tensor merged = graph.make(of.query, DType::kFp32);
  Tensor merged_sums = block.sums;
  for (std::int64_t round = 1; round < shape.ranks; ++round) {
    const Tensor others = rotation.arrived();
    keys = {};
    values = {};
    if (round + 1 < shape.ranks) {
      Tensor joined;
      rotation.exchange(joined);
    }
    const Elements part = of_round(of, is_of_later_rank(shape, round));
    block = attend(part);
    merge(graph, of, part, merged, merged_sums);
  }
  return {.output = graph.make(of.query, dtype), .sums = std::move(merged_sums)};
}

struct Gradients {
  Tensor query, key, value;
};

// A round's kernel, with what cuDNN works in, where each head of queries has its own keys.
Gradients attend_backward(Graph& graph, const Elements& of, DType dtype,
                          std::int64_t heads_of_key) {
  Gradients made = {.query = graph.make(of.query, dtype),
                    .key = graph.make(of.key, dtype),
                    .value = graph.make(of.key, dtype)};
  const std::int64_t expanded = heads_of_key > 1 ? kFp32 * of.key * heads_of_key : 0;
  const Tensor workspace =
      graph.make(kFp32 * (of.query + of.sums) + expanded + kCounters, DType::kBool);
  return made;
}

// Gradients of keys and values go round in fp32, and are added to on their way home.
Tensors play_backward(Graph& graph, const Elements& of, DType dtype, const RingShape& shape) {
  const auto wide = [&](std::int64_t elements) { return graph.make(elements, DType::kFp32); };
  const std::int64_t heads_of_key = shape.query_heads / shape.key_heads;
  Tensor sum = wide(of.query);
  Tensor of_keys = wide(of.key);
  Tensor of_values = wide(of.key);
  Tensor keys = graph.make(of.key, dtype);
  Tensor values = graph.make(of.key, dtype);
  Rotation rotation(graph, shape, 2 * of.key, dtype);
  Tensor joined;
  rotation.exchange(joined);
  Gradients round_made = attend_backward(graph, of, dtype, heads_of_key);
  Tensor pair;
  Tensor exchanged;
  const auto send = [&] {
    const InRow row(graph.tape, kRingExchangeRow);
    pair = wide(2 * of.key);
  };
  {
    const Tensor laid_out_keys = wide(of.key);  // both lie by token in the first round
    const Tensor laid_out_values = wide(of.key);
    send();
  }
  exchanged = wide(2 * of.key);
  Tensor half_sums;
  for (std::int64_t round = 1; round < shape.ranks; ++round) {
    const Tensor others = rotation.arrived();
    const bool has_later_keys = is_of_later_rank(shape, round);
    if (has_later_keys) {
      half_sums = wide(of.sums / 2);
    }
    keys = {};
    values = {};
    if (round + 1 < shape.ranks) {
      rotation.exchange(joined);
    }
    round_made = attend_backward(graph, of_round(of, has_later_keys), dtype, heads_of_key);
    pair = {};
    of_keys = {};  // what has come, of which one half is added to and both are put together
    of_values = {};
    if (has_later_keys) {
      of_keys = exchanged;  // to all of what has come
      of_values = exchanged;
    } else {
      of_keys = wide(of.key);
      of_values = wide(of.key);
    }
    send();
    exchanged = wide(2 * of.key);
  }
  sum = wide(of.query);  // both halves put together, the second with the last round's
  Tensor of_query = graph.make(of.query, dtype);
  sum = {};
  const Tensor both = graph.make(2 * of.key, dtype);
  Tensor of_key = both.viewed(of.key);
  of_key.is_view = true;
  return {std::move(of_query), of_key, of_key};
}

}  // namespace

Tensor ring_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                      const RingShape& shape) {
  const Tensor v = in_autocast(graph, value);
  const Tensor k = in_autocast(graph, key);
  const Tensor q = in_autocast(graph, query);
  NodeBuilder node(graph, {&q, &k, &v});
  const Elements of = {
      .query = q.elements, .key = k.elements, .sums = shape.query_heads * shape.tokens};
  const DType dtype = q.dtype;
  const auto [output, sums] = play_forward(graph, of, dtype, shape);
  if (node.is_needed()) {
    for (const Tensor* tensor : {&k, &sums, &output, &q, &v}) { node.save(*tensor); }
  }
  return node.finish(output, [=](BackwardCall& call) {
    Tensors saved;
    for (std::size_t i = 0; i < 5; ++i) { saved.push_back(call.saved(i)); }
    return play_backward(call.graph, of, dtype, shape);
  });
}

}  // namespace shardplan::eager
