// Tensor parallelism: what its ranks gather and sum, in pieces of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Tokens that tp ranks gather or sum as one piece, so that the products of other pieces run
// meanwhile. Under sequence parallelism every rank holds its part of every piece: the rows
// [row, row + rows) of its residual stream are those of tokens [token, token + tokens).
struct TokenPiece {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t token = 0;
  std::int64_t tokens = 0;
};
std::vector<TokenPiece> token_pieces(const Lowering& l);
// Where tokens of all tp ranks lie under sequence parallelism, for the whole step: what goes from
// one product to the next passes through the first cell, the inputs of weight gradients that are
// gathered again lie in the second.
void place_token_cells(Lowering& l);
enum class GatheredFor { kProduct, kWeightGradient };
// linear() and linear_input_gradient() piece by piece: of rows that are gathered, or that are
// summed over tp.
void linear_in_pieces(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
                      const std::string& label);
void input_gradient_in_pieces(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                              const std::string& label);
// Rows of all tp ranks under sequence parallelism, until the next ones take their cell; else x.
View gathered(Lowering& l, const View& x, const std::string& label,
              GatheredFor what = GatheredFor::kProduct);
// Where a product writes what is summed over tp: partial sums of all tokens under sequence
// parallelism, else `out` itself.
View partial_sums(Lowering& l, const View& out);
// `out` becomes the sum of partial_sums() over tp: rows of the residual stream, or all tokens.
void reduce_over_tp(Lowering& l, const View& partial, const View& out, const std::string& label);
// Calls write(where) with the place of the partial sums, which become `out`.
template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write);

template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write) {
  const View partial = partial_sums(l, out);
  write(partial);
  reduce_over_tp(l, partial, out, label);
}

}  // namespace shardplan
