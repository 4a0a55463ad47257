#include "estimator/time/block_fp8.h"

#include "estimator/plan/number.h"

namespace shardplan {

BlockTime fp8_rounding(const BlockContext& context, const ProductShape& layer) {
  constexpr double kBytes = 4;
  const auto rounding = context.framework.fp8_rounding;
  return rounding != nullptr ? rounding(context, layer)
                             : rounding_by_library(context, layer, kBytes, 0);
}

BlockTime rounding_by_library(const BlockContext& context, const ProductShape& layer, double bytes,
                              double weights) {
  const double input = number(layer.count * layer.m * layer.k);
  const double gradient = number(layer.count * layer.m * layer.n);
  BlockTime time;
  time.forward_s = memory_bound_s(context.gpu(), bytes * (input + weights));
  time.backward_input_s = memory_bound_s(context.gpu(), bytes * gradient);
  return time;
}

}  // namespace shardplan
