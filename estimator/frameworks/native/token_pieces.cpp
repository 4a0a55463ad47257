#include "estimator/frameworks/native/token_pieces.h"

#include <algorithm>

#include "estimator/ledger/block_rows.h"

namespace shardplan::native {

std::int64_t token_pieces(const Job& job, const Plan& plan) {
  constexpr std::int64_t kMostPieces = 4;
  constexpr std::int64_t kFp8Tokens = 16;
  if (plan.tp == 1 || job.model.has_moe_layers()) {
    return 1;
  }
  const BlockShape shape = block_shape(job, plan);
  const std::int64_t chunk = job.profile.tensor_parallel_chunk_tokens;
  std::int64_t pieces = std::min(kMostPieces, div_ceil(shape.tokens, chunk));
  const auto divides = [&](std::int64_t count) {
    return shape.sharded_tokens % count == 0 &&
           (plan.precision != Precision::kFp8 || shape.tokens / count % kFp8Tokens == 0);
  };
  while (pieces > 1 && !divides(pieces)) { --pieces; }
  return pieces;
}

}  // namespace shardplan::native
