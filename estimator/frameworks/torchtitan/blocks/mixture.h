// What the rows of a torchtitan mixture are written with: its sizes, and the steps of its backward.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {

struct MoeRows {
  // Steps of its backward, by what happens there.
  static constexpr Step kCombine = Step::kBackwardCombine;
  static constexpr Step kGather = Step::kBackwardSharedFc1Weight;  // of the experts' parameters
  static constexpr Step kUnsort = Step::kBackwardUnsort;
  static constexpr Step kSecondInput = Step::kBackwardFc1;       // of w3
  static constexpr Step kFirstInput = Step::kBackwardFc1Reduce;  // of w1
  static constexpr Step kUnpad = Step::kBackwardFc1Weight;
  static constexpr Step kReduce = Step::kBackwardRouter;  // of the experts' gradients
  static constexpr Step kToTokens = Step::kBackwardRouterInput;
  static constexpr Step kScores = Step::kBackwardRouterWeight;

  TitanBlock& block;
  TitanSizes sizes;
  TitanMoe moe = sizes.moe;

  std::int64_t of(std::int64_t bytes) const { return bytes / bytes_of(block.shape.dtype); }
  void keep(std::string_view name, std::int64_t bytes, Life life, std::string_view formula) {
    block.keep_or_write_again(name, of(bytes), block.shape.dtype, life, formula);
  }
  void use(std::string_view name, std::int64_t bytes, Step born, Step dies,
           std::string_view formula) {
    block.rows.use(name, of(bytes), block.shape.dtype, born, dies, formula);
  }
};

}  // namespace shardplan::torchtitan
