// Tensor parallelism: what its ranks gather and sum, in pieces of tokens. The products of a piece
// run while the next piece is gathered or the last one summed: the streams are ordered by the bytes
// that operations touch, so that it is enough to cut operations along the tokens. Products of
// weight gradients take all tokens at once.
#include <algorithm>
#include <numeric>

#include "validator/lowering.h"

namespace shardplan {

// Experts are chosen by the rows of a rank, counted by sequence: those rows are neighbours.
// Products in fp8 take multiples of 16 tokens; a microbatch has one (validity_native.cpp).
std::vector<TokenPiece> token_pieces(const Lowering& l) {
  const LocalSizes& s = l.sizes;
  const bool is_whole = l.plan.tp == 1 || l.job.model.has_moe_layers();
  const std::int64_t count =
      is_whole ? 1 : div_ceil(s.tokens, l.job.profile.tensor_parallel_chunk_tokens);
  const std::int64_t ranks = div_exact(s.tokens, s.rows);  // that a piece is divided between
  const std::int64_t multiple = l.plan.precision == Precision::kFp8 ? 16 / std::gcd(16, ranks) : 1;
  const std::int64_t step = round_up(div_ceil(s.rows, count), multiple);
  std::vector<TokenPiece> pieces;
  for (std::int64_t row = 0; row < s.rows; row += step) {
    const std::int64_t rows = std::min(step, s.rows - row);
    pieces.push_back({.row = row, .rows = rows, .token = row * ranks, .tokens = rows * ranks});
  }
  return pieces;
}

void linear_in_pieces(Lowering& l, const View& y, const View& x, const Weight& w,
                      const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    linear(l, rows_of(y, piece.token, piece.tokens), rows_of(x, piece.token, piece.tokens), w,
           label);
  }
}

void input_gradient_in_pieces(Lowering& l, const View& dx, const View& dy, const Weight& w,
                              const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    linear_input_gradient(l, rows_of(dx, piece.token, piece.tokens),
                          rows_of(dy, piece.token, piece.tokens), w, label);
  }
}

View gathered(Lowering& l, const View& x, const std::string& label) {
  if (!l.has_sequence_parallel()) {
    return x;
  }
  const View all = l.builder.push(exchanged(temporary(label, l.sizes.tokens, x.cols)));
  for (const TokenPiece& piece : token_pieces(l)) {
    emit(l,
         {.kind = OpKind::kAllGather,
          .in = {rows_of(x, piece.row, piece.rows)},
          .out = {rows_of(all, piece.token, piece.tokens)},
          .group = l.groups.tp,
          .stream = Stream::kTensor},
         label);
  }
  return all;
}

void reduce_over_tp(Lowering& l, const View& partial, const View& out, const std::string& label) {
  if (l.plan.tp == 1) {
    return;
  }
  for (const TokenPiece& piece : token_pieces(l)) {
    emit(l,
         {.kind = l.has_sequence_parallel() ? OpKind::kReduceScatter : OpKind::kAllReduce,
          .in = {rows_of(partial, piece.token, piece.tokens)},
          .out = {rows_of(out, piece.row, piece.rows)},
          .group = l.groups.tp,
          .stream = Stream::kTensor},
         label + ".reduce");
  }
}

}  // namespace shardplan
