// Tensor parallelism: what its ranks gather and sum, in pieces of tokens. The products of a piece
// run while the next piece is gathered or the last one summed: the streams are ordered by the bytes
// that operations touch, so that it is enough to cut operations along the tokens. Products of
// weight gradients take all tokens at once.
#include "validator/lower/tensor.h"

#include <algorithm>
#include <numeric>

#include "validator/lower/ops.h"

namespace shardplan {

// Experts are chosen by the rows of a rank, counted by sequence: those rows are neighbours.
// Products in fp8 take multiples of 16 tokens. Pieces are of one size: the parts of one then lie
// where those of another lay, on every rank alike.
std::vector<TokenPiece> token_pieces(const Lowering& l) {
  constexpr std::int64_t kMostPieces = 4;
  const LocalSizes& s = l.sizes;
  const bool is_whole = l.plan.tp == 1 || l.job.model.has_moe_layers();
  const std::int64_t ranks = div_exact(s.tokens, s.rows);  // that a piece is divided between
  const std::int64_t multiple = l.plan.precision == Precision::kFp8 ? 16 / std::gcd(16, ranks) : 1;
  std::int64_t count =
      is_whole
          ? 1
          : std::min(kMostPieces, div_ceil(s.tokens, l.job.profile.tensor_parallel_chunk_tokens));
  while (count > 1 && s.rows % (count * multiple) != 0) { --count; }
  const std::int64_t rows = s.rows / count;
  std::vector<TokenPiece> pieces;
  for (std::int64_t row = 0; row < s.rows; row += rows) {
    pieces.push_back({.row = row, .rows = rows, .token = row * ranks, .tokens = rows * ranks});
  }
  return pieces;
}

void linear_in_pieces(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
                      const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    linear(l, rows_of(y, piece.token, piece.tokens), rows_of(x, piece.token, piece.tokens), w,
           label);
  }
}

void input_gradient_in_pieces(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                              const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    linear_input_gradient(l, rows_of(dx, piece.token, piece.tokens),
                          rows_of(dy, piece.token, piece.tokens), w, label);
  }
}

namespace {

// Tokens in front of partial sums, where the other ranks' parts of the first piece arrive.
std::int64_t room_for_parts(const Lowering& l) {
  const std::vector<TokenPiece> pieces = token_pieces(l);
  return pieces.size() > 1 ? pieces.front().tokens : 0;
}

View exchanged_tokens(Lowering& l) {
  return l.builder.place(
      l.exchanged_tokens,
      exchanged(temporary("exchanged_tokens", l.sizes.tokens + room_for_parts(l), l.sizes.hidden)));
}

}  // namespace

void place_token_cells(Lowering& l) {
  if (!l.has_sequence_parallel()) {
    return;
  }
  const auto cell = [&](std::int64_t tokens) {
    return l.builder.standing_cell(
        padded_bytes(exchanged(temporary("tokens", tokens, l.sizes.hidden))));
  };
  l.exchanged_tokens = cell(l.sizes.tokens + room_for_parts(l));
  l.gathered_inputs = cell(l.sizes.tokens);
}

// This rank's part is copied on the compute stream: a copy within the GPU takes multiprocessors,
// and on the other stream it would wait for the product that occupies them.
View gathered(Lowering& l, const View& x, const std::string& label, GatheredFor what) {
  if (!l.has_sequence_parallel()) {
    return x;
  }
  const View all =
      what == GatheredFor::kProduct
          ? rows_of(exchanged_tokens(l), 0, l.sizes.tokens)
          : l.builder.place(
                l.gathered_inputs,
                exchanged(temporary("gathered_inputs", l.sizes.tokens, l.sizes.hidden)));
  for (const TokenPiece& piece : token_pieces(l)) {
    const View own = rows_of(all, piece.token + l.at.tp * piece.rows, piece.rows);
    emit(l, {.kind = OpKind::kCopy, .in = {rows_of(x, piece.row, piece.rows)}, .out = {own}},
         label + ".own");
    emit(l,
         {.kind = OpKind::kAllGather,
          .in = {own},
          .out = {rows_of(all, piece.token, piece.tokens)},
          .group = l.groups.tp,
          .stream = Stream::kTensor},
         label);
  }
  return all;
}

// In pieces, those of the other ranks arrive where the piece before lay, whose sums are done: the
// partial sums lie one piece behind the start of their cell.
View partial_sums(Lowering& l, const View& out) {
  if (!l.has_sequence_parallel()) {
    return out;
  }
  return rows_of(exchanged_tokens(l), room_for_parts(l), l.sizes.tokens);
}

namespace {

void exchange_and_sum(Lowering& l, const View& partial, const View& out, const TokenPiece& piece,
                      const std::string& label) {
  const View own_piece = rows_of(partial, piece.token, piece.tokens);
  View arriving = own_piece;  // one piece in front of it
  arriving.offset -= room_for_parts(l) * partial.stride;
  emit(l,
       {.kind = OpKind::kExchange,
        .in = {own_piece},
        .out = {arriving},
        .group = l.groups.tp,
        .stream = Stream::kTensor},
       label + ".exchange");
  emit(l,
       {.kind = OpKind::kSumParts,
        .in = {arriving, rows_of(own_piece, l.at.tp * piece.rows, piece.rows)},
        .out = {rows_of(out, piece.row, piece.rows)},
        .attributes = {.member = l.at.tp},
        .group = l.groups.tp},
       label + ".sum");
}

}  // namespace

// NCCL's reduce-scatter, and that of the copy engines, waits for multiprocessors at every rank it
// adds; parts arrive without, and are added up between two products.
void reduce_over_tp(Lowering& l, const View& partial, const View& out, const std::string& label) {
  if (l.plan.tp == 1) {
    return;
  }
  const std::vector<TokenPiece> pieces = token_pieces(l);
  const bool scatters = l.has_sequence_parallel();
  for (const TokenPiece& piece : pieces) {
    if (scatters && pieces.size() > 1) {
      exchange_and_sum(l, partial, out, piece, label);
      continue;
    }
    emit(l,
         {.kind = scatters ? OpKind::kReduceScatter : OpKind::kAllReduce,
          .in = {rows_of(partial, piece.token, piece.tokens)},
          .out = {rows_of(out, piece.row, piece.rows)},
          .group = l.groups.tp,
          .stream = Stream::kTensor},
         label + ".reduce");
  }
}

}  // namespace shardplan
