// Ring attention over zigzag chunks (Liu et al., arXiv 2310.01889; the zigzag order as in
// TransformerEngine's context_parallel.py). Keys and values of one rank after the other visit this
// rank: hop i brings those of the i-th member before it. They take turns in two buffers, so that
// the next ones arrive while attention reads the last. Blocks that the causal mask hides completely
// are left out. The output is summed in fp32, weighted by log-sum-exps. Backward sends the keys and
// values around again with the final output and log-sum-exp on every hop; their gradients follow
// one hop behind in fp32, again in two buffers, and arrive at home with the last shift.
#include "validator/lower/ring.h"

#include <algorithm>

#include "validator/lower/attention.h"
#include "validator/lower/ops.h"

namespace shardplan {
namespace {

// One call of attention: rows of this rank's queries on rows of the visiting keys, both of one
// sequence.
struct Block {
  std::int64_t query_row = 0;
  std::int64_t queries = 0;
  std::int64_t key_row = 0;
  std::int64_t keys = 0;
  std::int64_t query_position = 0;
  std::int64_t key_position = 0;

  bool is_diagonal() const { return query_position == key_position; }
};

std::int64_t chunk_length(const Lowering& l) {
  return div_exact(l.job.sequence_length, 2 * l.plan.cp);
}

// With a window every pair of chunks has its own distance; those that are too far apart are left
// out as well, and of the others the queries behind the last one that sees a key: attention asks
// for one (kernels/attention/attention.h).
std::vector<Block> windowed_blocks(const Lowering& l, std::int64_t origin, std::int64_t window) {
  const std::int64_t length = chunk_length(l);
  const std::vector<TokenRun> own = runs_of_sequence(l.job, l.plan, l.at.cp);
  const std::vector<TokenRun> visiting = runs_of_sequence(l.job, l.plan, origin);
  std::vector<Block> blocks;
  for (std::size_t q = 0; q < own.size(); ++q) {
    for (std::size_t k = 0; k < visiting.size(); ++k) {
      const std::int64_t query = own[q].first_position;
      const std::int64_t key = visiting[k].first_position;
      const std::int64_t queries = std::min(length, key + length - 1 + window - query);
      if (key <= query && queries > 0) {
        blocks.push_back({.query_row = static_cast<std::int64_t>(q) * length,
                          .queries = queries,
                          .key_row = static_cast<std::int64_t>(k) * length,
                          .keys = length,
                          .query_position = query,
                          .key_position = key});
      }
    }
  }
  return blocks;
}

// Chunks rank and 2 * cp - 1 - rank against those of `origin`. From an earlier rank all queries see
// the first chunk alone; from a later one the second half of the queries sees both. In either case
// the keys lie before the queries, so that rows may be counted as if they were neighbours.
std::vector<Block> blocks_of(const Lowering& l, std::int64_t origin) {
  const std::int64_t window =
      l.job.model.layers[static_cast<std::size_t>(l.layer)].attention_window;
  if (window > 0) {
    return windowed_blocks(l, origin, window);
  }
  const std::int64_t length = chunk_length(l);
  if (origin == l.at.cp) {
    return {{.queries = 2 * length, .keys = 2 * length}};
  }
  if (origin < l.at.cp) {
    return {{.queries = 2 * length,
             .keys = length,
             .query_position = l.at.cp * length,
             .key_position = origin * length}};
  }
  return {{.query_row = length,
           .queries = length,
           .keys = 2 * length,
           .query_position = (2 * l.plan.cp - 1 - l.at.cp) * length,
           .key_position = origin * length}};
}

// Calls visit(block) for the diagonal blocks of hop 0, or for all other blocks of a hop, of every
// sequence; rows count from the start of the microbatch.
template <class Visit>
void for_each_block(const Lowering& l, std::int64_t hop, bool diagonal, const Visit& visit) {
  const std::int64_t origin = (l.at.cp - hop + l.plan.cp) % l.plan.cp;
  for (std::int64_t sequence = 0; sequence < l.plan.micro_batch; ++sequence) {
    for (Block block : blocks_of(l, origin)) {
      if (block.is_diagonal() == diagonal) {
        block.query_row += sequence * 2 * chunk_length(l);
        block.key_row += sequence * 2 * chunk_length(l);
        visit(block);
      }
    }
  }
}

Operation attention_of(const Lowering& l, OpKind kind, const Block& block) {
  Operation op = attention(l, kind, 1, block.query_position);
  op.attributes.key_position = block.key_position;
  return op;
}

// Two buffers that what travels takes turns in, the halves of one tensor.
class Carousel {
 public:
  Carousel(Lowering& l, TensorSpec spec) : l_(l), rows_(spec.rows), name_(spec.name) {
    spec.rows *= 2;
    buffers_ = l.builder.push(spec);
  }
  // The buffer for what comes next.
  View next() { return rows_of(buffers_, used_++ % 2 * rows_, rows_); }
  // What the rank before this one has, as `view` goes on to the one behind it.
  View shift(const View& view) {
    const View arriving = next();
    emit(l_,
         {.kind = OpKind::kRingShift,
          .in = {view},
          .out = {arriving},
          .group = l_.groups.cp,
          .stream = Stream::kContext},
         name_ + ".shift");
    return arriving;
  }

 private:
  Lowering& l_;
  std::int64_t rows_;
  std::string name_;
  View buffers_ = {};
  std::int64_t used_ = 0;
};

Carousel key_values(Lowering& l) {
  return {
      l, exchanged(temporary("attention.ring_key_values", l.sizes.tokens, 2 * l.sizes.kv_width()))};
}

View own_key_values(Lowering& l, Carousel& carousel, const View& qkv) {
  const View kv = carousel.next();
  emit(l, {.kind = OpKind::kCopy, .in = {keys_and_values_of(l, qkv)}, .out = {kv}},
       "attention.ring_key_values.own");
  return kv;
}

// o and log-sum-exp of a block, merged into those of the keys seen so far.
void attend_block(Lowering& l, const Block& block, const View& kv, const LayerActivations& a,
                  const View& sum) {
  const FrameScope scope(l.builder);
  const std::int64_t most = 2 * chunk_length(l);
  const View out =
      rows_of(l.builder.push(temporary("attention.ring_part", most, l.sizes.query_width())), 0,
              block.queries);
  const View lse = rows_of(
      l.builder.push(statistics("attention.ring_part_log_sum_exp", most, l.sizes.query_heads)), 0,
      block.queries);
  const View keys = rows_of(kv, block.key_row, block.keys);
  const auto queries = [&](const View& view) {
    return rows_of(view, block.query_row, block.queries);
  };
  Operation op = attention_of(l, OpKind::kAttentionForward, block);
  op.in = {queries(queries_of(l, a.qkv)), keys_of(l, keys), values_of(l, keys)};
  op.out = {out, lse};
  emit(l, std::move(op), "attention.block");
  emit(l,
       {.kind = OpKind::kLseMerge, .in = {out, lse}, .out = {queries(sum), queries(a.log_sum_exp)}},
       "attention.merge");
}

// The gradients of a block, added to those of the queries and of the visiting keys and values.
struct RingGradients {
  View queries = {};
  View key_values = {};
  View workspace = {};  // of one call, large enough for the diagonal
};

void block_backward(Lowering& l, const Block& block, const View& kv, const View& dout,
                    const LayerActivations& a, const RingGradients& sums) {
  const FrameScope scope(l.builder);
  const std::int64_t most = 2 * chunk_length(l);
  const std::int64_t width = l.sizes.query_width();
  const std::int64_t kv_width = 2 * l.sizes.kv_width();
  // One tensor: the gradients of keys and values, behind them those of the queries.
  const View part = l.builder.push(temporary("attention.ring_part_gradients",
                                             most + div_exact(most * width, kv_width), kv_width));
  const View dkv = rows_of(part, 0, block.keys);
  const View dq{.tensor = part.tensor,
                .offset = most * kv_width,
                .rows = block.queries,
                .cols = width,
                .stride = width};
  const View keys = rows_of(kv, block.key_row, block.keys);
  const auto queries = [&](const View& view) {
    return rows_of(view, block.query_row, block.queries);
  };
  Operation op = attention_of(l, OpKind::kAttentionBackward, block);
  op.in = {queries(dout),      queries(queries_of(l, a.qkv)), keys_of(l, keys),
           values_of(l, keys), queries(a.attention_output),   queries(a.log_sum_exp)};
  op.out = {dq, keys_of(l, dkv), values_of(l, dkv), sums.workspace};
  emit(l, std::move(op), "attention.block");
  const auto add = [&](const View& sum, const View& gradient, const std::string& label) {
    emit(l, {.kind = OpKind::kAdd, .in = {sum, gradient}, .out = {sum}}, label);
  };
  add(queries(sums.queries), dq, "attention.ring_query_gradient.add");
  add(rows_of(sums.key_values, block.key_row, block.keys), dkv,
      "attention.ring_key_value_gradients.add");
}

// Hop 0 sees this rank's own keys: the diagonal blocks write every row of the result.
void attend_diagonal(Lowering& l, const LayerActivations& a) {
  for_each_block(l, 0, true, [&](const Block& block) {
    const auto rows = [&](const View& view) {
      return rows_of(view, block.query_row, block.queries);
    };
    const View kv = rows(keys_and_values_of(l, a.qkv));
    Operation op = attention_of(l, OpKind::kAttentionForward, block);
    op.in = {rows(queries_of(l, a.qkv)), keys_of(l, kv), values_of(l, kv)};
    op.out = {rows(a.attention_output), rows(a.log_sum_exp)};
    emit(l, std::move(op), "attention.core");
  });
}

void diagonal_backward(Lowering& l, const View& dqkv, const View& dout, const LayerActivations& a,
                       const View& workspace) {
  for_each_block(l, 0, true, [&](const Block& block) {
    const auto rows = [&](const View& view) {
      return rows_of(view, block.query_row, block.queries);
    };
    const View kv = rows(keys_and_values_of(l, a.qkv));
    const View dkv = rows(keys_and_values_of(l, dqkv));
    Operation op = attention_of(l, OpKind::kAttentionBackward, block);
    op.in = {rows(dout),       rows(queries_of(l, a.qkv)), keys_of(l, kv),
             values_of(l, kv), rows(a.attention_output),   rows(a.log_sum_exp)};
    op.out = {rows(queries_of(l, dqkv)), keys_of(l, dkv), values_of(l, dkv), workspace};
    emit(l, std::move(op), "attention.core");
  });
}

}  // namespace

void attend_ring(Lowering& l, const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View sum =
      l.builder.push(statistics("attention.ring_output", l.sizes.tokens, l.sizes.query_width()));
  Carousel carousel = key_values(l);
  View kv = own_key_values(l, carousel, a.qkv);
  for (std::int64_t hop = 0; hop < l.plan.cp; ++hop) {
    const View next = hop + 1 < l.plan.cp ? carousel.shift(kv) : View{};
    if (hop == 0) {
      attend_diagonal(l, a);
      emit(l, {.kind = OpKind::kCopy, .in = {a.attention_output}, .out = {sum}},
           "attention.ring_output");
    }
    for_each_block(l, hop, false, [&](const Block& block) { attend_block(l, block, kv, a, sum); });
    kv = next;
  }
  emit(l, {.kind = OpKind::kCopy, .in = {sum}, .out = {a.attention_output}},
       "attention.ring_output.rounded");
}

void attend_ring_backward(Lowering& l, const View& dqkv, const View& dout,
                          const LayerActivations& a) {
  const FrameScope scope(l.builder);
  RingGradients sums{.queries = l.builder.push(statistics("attention.ring_query_gradient",
                                                          l.sizes.tokens, l.sizes.query_width()))};
  sums.workspace =
      backward_workspace(l, 1, 2 * chunk_length(l), 2 * chunk_length(l), KeyGradients::kWritten);
  Carousel carousel = key_values(l);
  TensorSpec traveller = exchanged(
      statistics("attention.ring_key_value_gradients", l.sizes.tokens, 2 * l.sizes.kv_width()));
  Carousel gradients(l, traveller);
  View kv = own_key_values(l, carousel, a.qkv);
  for (std::int64_t hop = 0; hop < l.plan.cp; ++hop) {
    const View next = hop + 1 < l.plan.cp ? carousel.shift(kv) : View{};
    if (hop == 0) {
      diagonal_backward(l, dqkv, dout, a, sums.workspace);
      sums.key_values = gradients.next();
      emit(l, {.kind = OpKind::kCopy, .in = {queries_of(l, dqkv)}, .out = {sums.queries}},
           "attention.ring_query_gradient");
      emit(l,
           {.kind = OpKind::kCopy, .in = {keys_and_values_of(l, dqkv)}, .out = {sums.key_values}},
           "attention.ring_key_value_gradients");
    }
    for_each_block(l, hop, false,
                   [&](const Block& block) { block_backward(l, block, kv, dout, a, sums); });
    if (hop + 1 == l.plan.cp) {
      emit(l, {.kind = OpKind::kCopy, .in = {sums.queries}, .out = {queries_of(l, dqkv)}},
           "attention.ring_query_gradient.rounded");
    }
    sums.key_values = gradients.shift(sums.key_values);
    kv = next;
  }
  emit(l, {.kind = OpKind::kCopy, .in = {sums.key_values}, .out = {keys_and_values_of(l, dqkv)}},
       "attention.ring_key_value_gradients.rounded");
}

}  // namespace shardplan
