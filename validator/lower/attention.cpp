// Attention on packed q, k, v. Without context parallelism one call. With it the sequence lies in
// 2 * cp chunks, rank i holding chunks i and 2 * cp - 1 - i (zigzag: equal work under the causal
// mask). By all-gather: keys and values of all ranks are gathered in the order of the sequence, and
// each of the two chunks attends to the keys before its end, as far back as a window reaches (Llama
// 3, arXiv 2407.21783, section 3.3.2). The ring is in ring.cpp.
#include "validator/lower/attention.h"

#include <algorithm>

#include "validator/lower/ops.h"
#include "validator/lower/ring.h"

namespace shardplan {

Operation attention(const Lowering& l, OpKind kind, std::int64_t batch,
                    std::int64_t first_position) {
  const std::int64_t layer = l.layer;
  return {
      .kind = kind,
      .attributes = {.batch = batch,
                     .heads = l.sizes.query_heads,
                     .kv_heads = l.sizes.kv_heads,
                     .head_dim = l.sizes.head_dim,
                     .query_position = first_position,
                     .window = l.job.model.layers[static_cast<std::size_t>(layer)].attention_window,
                     .repeatable = l.job.profile.deterministic_attention}};
}

View queries_of(const Lowering& l, const View& qkv) {
  return columns_of(qkv, 0, l.sizes.query_width());
}

View keys_and_values_of(const Lowering& l, const View& qkv) {
  return columns_of(qkv, l.sizes.query_width(), 2 * l.sizes.kv_width());
}

View keys_of(const Lowering& l, const View& kv) {
  return columns_of(kv, 0, l.sizes.kv_width());
}

View values_of(const Lowering& l, const View& kv) {
  return columns_of(kv, l.sizes.kv_width(), l.sizes.kv_width());
}

namespace {

// Repeatable attention, and what adds to gradients of keys, is our own where its kernels run on
// warpgroups (kernels/attention/call.h), and cuDNN's elsewhere.
bool runs_backward_on_own_kernels(const Lowering& l, KeyGradients key_gradients) {
  return (l.job.profile.deterministic_attention || key_gradients == KeyGradients::kAdded) &&
         l.job.cluster.gpu.compute_capability == 90 &&
         (l.sizes.head_dim == 64 || l.sizes.head_dim == 128);
}

// fp32 elements of cuDNN 9.19 on an H200: per query head a softmax term and an accumulator of dq
// per query, or tiles of 64 x 64 in bf16 where it is deterministic; and key and value gradients by
// query head where heads share them. The frontend of cuDNN aligns what it adds: 64 elements more.
// Behind them the log-sum-exp as cuDNN reads it, by head (kernels/attention/cudnn.cpp); and where
// gradients of keys and values are added to what is there, those of one call, in bf16.
std::int64_t cudnn_workspace(const Lowering& l, std::int64_t batch, std::int64_t queries,
                             std::int64_t keys, KeyGradients key_gradients) {
  constexpr std::int64_t kTile = 64;
  constexpr std::int64_t kAlignment = 64;
  const LocalSizes& s = l.sizes;
  const std::int64_t tiles = round_up(queries, kTile) * round_up(keys, kTile) / 2;
  std::int64_t per_head =
      queries + (l.job.profile.deterministic_attention ? tiles : queries * s.head_dim);
  if (s.kv_heads != s.query_heads) {
    per_head += keys * s.head_dim;
  }
  const std::int64_t added =
      key_gradients == KeyGradients::kAdded ? batch * keys * s.kv_width() : 0;
  return round_up(batch * s.query_heads * per_head + kAlignment, kAlignment) +
         round_up(batch * s.query_heads * queries, kAlignment) + added;
}

}  // namespace

View backward_workspace(Lowering& l, std::int64_t batch, std::int64_t queries, std::int64_t keys,
                        KeyGradients key_gradients) {
  // Our own kernels keep the sum of dout * o of every row, and add gradients up themselves.
  const std::int64_t elements = runs_backward_on_own_kernels(l, key_gradients)
                                    ? batch * l.sizes.query_heads * queries
                                    : cudnn_workspace(l, batch, queries, keys, key_gradients);
  TensorSpec spec = statistics("attention.backward_workspace", 1, elements);
  spec.component = Component::kWorkspace;
  return l.builder.push(spec);
}

namespace {

// All sequences at once: of two chunks each, the second goes on behind a gap.
void rotate(Lowering& l, const View& qkv, OpAttributes direction, const std::string& label) {
  const View rotated = columns_of(qkv, 0, l.sizes.query_width() + l.sizes.kv_width());
  direction.theta = l.hyperparameters.rope_theta;
  direction.heads = l.sizes.query_heads + l.sizes.kv_heads;
  direction.head_dim = l.sizes.head_dim;
  direction.batch = l.plan.micro_batch;
  set_positions(l, direction);
  emit(l, {.kind = OpKind::kRope, .in = {rotated}, .out = {rotated}, .attributes = direction},
       label);
}

// One zigzag chunk of one sequence: where its rows lie locally and in the order of the sequence.
struct Piece {
  View whole;               // keys and values of the sequence
  std::vector<View> parts;  // of `whole`, by member of the group
  View own;
  View local;  // rows of the local packed tensor
};

Piece piece_of(const Lowering& l, const View& ordered, const View& local, std::size_t index) {
  const std::int64_t length = l.job.sequence_length;
  const TokenRun& run = l.program().token_order[index];
  Piece piece;
  piece.whole = rows_of(ordered, run.sequence * length, length);
  for (std::int64_t member = 0; member < l.plan.cp; ++member) {
    const TokenRun theirs = runs_of_sequence(l.job, l.plan, member)[index % 2];
    piece.parts.push_back(rows_of(piece.whole, theirs.first_position, theirs.count));
  }
  piece.own = rows_of(piece.whole, run.first_position, run.count);
  piece.local = rows_of(local, static_cast<std::int64_t>(index) * run.count, run.count);
  return piece;
}

View gather_keys(Lowering& l, const View& qkv, const std::string& label) {
  const View ordered = l.builder.push(exchanged(
      temporary(label, l.plan.micro_batch * l.job.sequence_length, 2 * l.sizes.kv_width())));
  std::vector<Piece> pieces;
  Operation copy{.kind = OpKind::kCopy};
  for (std::size_t i = 0; i < l.program().token_order.size(); ++i) {
    pieces.push_back(piece_of(l, ordered, keys_and_values_of(l, qkv), i));
    copy.in.push_back(pieces.back().local);
    copy.out.push_back(pieces.back().own);
  }
  emit(l, std::move(copy), label + ".own");
  // One by one: attention on a sequence waits for its own keys alone.
  for (const Piece& piece : pieces) {
    emit(l,
         {.kind = OpKind::kAllGather,
          .in = {piece.own},
          .out = piece.parts,
          .group = l.groups.cp,
          .stream = Stream::kTensor},
         label);
  }
  return ordered;
}

// Keys in front of a run that its first query sees, at most. Kernels work on tiles of 64 rows and
// skip those that the mask hides: a whole number of tiles leaves the diagonal and the lengths where
// they lie without a window, on the corners of tiles.
std::int64_t keys_before(const Lowering& l, std::int64_t window) {
  constexpr std::int64_t kTile = 64;
  return window == 0 ? l.job.sequence_length : round_up(window - 1, kTile);
}

// Keys and values that a run of queries may see: up to its end, from the start of its sequence or
// as far back as the window reaches.
TokenRun visible(const Lowering& l, const TokenRun& run, std::int64_t window) {
  const std::int64_t first = std::max<std::int64_t>(0, run.first_position - keys_before(l, window));
  return {.sequence = run.sequence,
          .first_position = first,
          .count = run.first_position + run.count - first};
}

View in_order(const Lowering& l, const View& ordered, const TokenRun& run) {
  return rows_of(ordered, run.sequence * l.job.sequence_length + run.first_position, run.count);
}

void attend_gathered(Lowering& l, const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View ordered = gather_keys(l, a.qkv, "attention.gathered_key_values");
  std::int64_t row = 0;
  for (const TokenRun& run : l.program().token_order) {
    Operation op = attention(l, OpKind::kAttentionForward, 1, run.first_position);
    const TokenRun keys = visible(l, run, op.attributes.window);
    const View kv = in_order(l, ordered, keys);
    op.attributes.key_position = keys.first_position;
    op.in = {rows_of(queries_of(l, a.qkv), row, run.count), keys_of(l, kv), values_of(l, kv)};
    op.out = {rows_of(a.attention_output, row, run.count), rows_of(a.log_sum_exp, row, run.count)};
    emit(l, std::move(op), "attention.core");
    row += run.count;
  }
}

// Parts of the gradients arrive where the keys and values of the sequence lie, which no call reads
// any more. Other ranks' gathers have read nothing there but this one's own part, which an exchange
// leaves as it is: what this rank's operations share orders it behind all that it overwrites.
void sum_key_gradients(Lowering& l, const View& dqkv, const View& gradient, const View& ordered) {
  const View local = keys_and_values_of(l, dqkv);
  for (std::size_t i = 0; i < l.program().token_order.size(); ++i) {
    const TokenRun& run = l.program().token_order[i];
    const Piece piece = piece_of(l, gradient, local, i);
    const Piece room = piece_of(l, ordered, local, i);
    emit(l,
         {.kind = OpKind::kExchange,
          .in = piece.parts,
          .out = room.parts,
          .group = l.groups.cp,
          .stream = Stream::kTensor},
         "attention.key_value_gradients.exchange");
    const std::int64_t half = l.plan.cp * run.count;  // rows of one chunk of every rank
    const std::int64_t behind = run.first_position % half;
    emit(l,
         {.kind = OpKind::kSumParts,
          .in = {rows_of(room.whole, run.first_position - behind, half), piece.own},
          .out = {piece.local},
          .attributes = {.member = behind / run.count},
          .group = l.groups.cp},
         "attention.key_value_gradients.sum");
  }
}

void attend_gathered_backward(Lowering& l, const View& dqkv, const View& dout,
                              const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View ordered = gather_keys(l, a.qkv, "attention.gathered_key_values");
  const View gradient = l.builder.push(
      exchanged(temporary("attention.key_value_gradients", ordered.rows, ordered.cols)));
  emit(l, {.kind = OpKind::kFill, .out = {gradient}}, "attention.key_value_gradients");
  // For the longest call of all layers and ranks: layers of different windows are of one size.
  const std::int64_t run_length = l.program().token_order.front().count;
  const std::int64_t most_keys = std::min(
      l.job.sequence_length, run_length + keys_before(l, l.job.model.longest_attention_window()));
  const View workspace = backward_workspace(l, 1, run_length, most_keys, KeyGradients::kAdded);
  std::int64_t row = 0;
  for (const TokenRun& run : l.program().token_order) {
    const auto part = [&](const View& view) { return rows_of(view, row, run.count); };
    Operation op = attention(l, OpKind::kAttentionBackward, 1, run.first_position);
    const TokenRun keys = visible(l, run, op.attributes.window);
    const View kv = in_order(l, ordered, keys);
    const View dkv = in_order(l, gradient, keys);
    op.attributes.key_position = keys.first_position;
    op.in = {part(dout),       part(queries_of(l, a.qkv)), keys_of(l, kv),
             values_of(l, kv), part(a.attention_output),   part(a.log_sum_exp)};
    op.out = {part(queries_of(l, dqkv)), keys_of(l, dkv), values_of(l, dkv), workspace};
    op.attributes.accumulate = true;
    emit(l, std::move(op), "attention.core");
    row += run.count;
  }
  sum_key_gradients(l, dqkv, gradient, ordered);
}

}  // namespace

std::vector<TokenRun> runs_of_sequence(const Job& job, const Plan& plan, std::int64_t cp_rank) {
  if (plan.cp == 1) {
    return {{.count = job.sequence_length}};
  }
  const std::int64_t length = div_exact(job.sequence_length, 2 * plan.cp);
  return {{.first_position = cp_rank * length, .count = length},
          {.first_position = (2 * plan.cp - 1 - cp_rank) * length, .count = length}};
}

void set_positions(const Lowering& l, OpAttributes& attributes) {
  const std::vector<TokenRun> runs = runs_of_sequence(l.job, l.plan, l.at.cp);
  const std::int64_t first = runs.front().first_position;
  const std::int64_t end = runs.back().first_position + runs.back().count;
  attributes.query_position = first;
  attributes.position_gap = end - first - div_exact(l.sizes.tokens, l.plan.micro_batch);
}

void attention_forward(Lowering& l, const LayerActivations& a) {
  if (l.plan.cp > 1) {
    return l.plan.cp_method == CpMethod::kRing ? attend_ring(l, a) : attend_gathered(l, a);
  }
  const View kv = keys_and_values_of(l, a.qkv);
  Operation op = attention(l, OpKind::kAttentionForward, l.plan.micro_batch, 0);
  op.in = {queries_of(l, a.qkv), keys_of(l, kv), values_of(l, kv)};
  op.out = {a.attention_output, a.log_sum_exp};
  emit(l, std::move(op), "attention.core");
}

void attention_backward(Lowering& l, const View& dqkv, const View& dout,
                        const LayerActivations& a) {
  if (l.plan.cp > 1) {
    return l.plan.cp_method == CpMethod::kRing ? attend_ring_backward(l, dqkv, dout, a)
                                               : attend_gathered_backward(l, dqkv, dout, a);
  }
  const FrameScope scope(l.builder);
  const View kv = keys_and_values_of(l, a.qkv);
  const View dkv = keys_and_values_of(l, dqkv);
  Operation op = attention(l, OpKind::kAttentionBackward, l.plan.micro_batch, 0);
  op.in = {dout,         queries_of(l, a.qkv), keys_of(l, kv), values_of(l, kv), a.attention_output,
           a.log_sum_exp};
  const std::int64_t length = l.job.sequence_length;
  op.out = {queries_of(l, dqkv), keys_of(l, dkv), values_of(l, dkv),
            backward_workspace(l, l.plan.micro_batch, length, length, KeyGradients::kWritten)};
  emit(l, std::move(op), "attention.core");
}

void rotate_forward(Lowering& l, const View& qkv) {
  rotate(l, qkv, {}, "attention.rope");
}

void rotate_backward(Lowering& l, const View& dqkv) {
  rotate(l, dqkv, {.inverse = true}, "attention.rope");
}

}  // namespace shardplan
