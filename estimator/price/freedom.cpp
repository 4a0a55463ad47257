#include "estimator/price/freedom.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "estimator/price/pieces.h"

namespace shardplan {
namespace {

bool opens_same_state(const PriceFreedom& one, const PriceFreedom& other) {
  const auto axes = [](const PriceFreedom& open) {
    return std::tie(open.zero, open.dp_replicate, open.precision, open.grad_dtype,
                    open.master_dtype, open.exp_avg_dtype, open.exp_avg_sq_dtype, open.offload,
                    open.rank_order);
  };
  return axes(one) == axes(other);
}

}  // namespace

std::size_t add_freedom(PriceTable& table, PriceFreedom freedom) {
  PricePieces& pieces = table.pieces();
  const auto same = std::ranges::find_if(
      pieces.freedoms, [&](const PriceFreedom& other) { return opens_same_state(freedom, other); });
  pieces.state_freedoms.push_back(static_cast<std::size_t>(same - pieces.freedoms.begin()));
  pieces.freedoms.push_back(std::move(freedom));
  return pieces.freedoms.size() - 1;
}

}  // namespace shardplan
