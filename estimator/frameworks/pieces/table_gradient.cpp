#include "estimator/frameworks/pieces/table_gradient.h"

#include <algorithm>

namespace shardplan {
namespace {

constexpr std::int64_t kFp32 = 4;

}  // namespace

std::int64_t table_workspace_bytes(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) {
  constexpr std::int64_t kFewTokens = 3072;
  constexpr std::int64_t kTokensOfPart = 10;
  return tokens <= kFewTokens ? 0
                              : (tokens / kTokensOfPart + std::min(tokens, rows)) * hidden * kFp32;
}

}  // namespace shardplan
