// Prices that all searches of a job share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/price.h"

namespace shardplan {

// One table of prices for every thread of in_parallel, built when the thread first asks.
class PriceTables {
 public:
  PriceTables(const Job& job, std::int64_t threads);
  PriceTable& of(std::size_t thread);

 private:
  const Job& job_;
  std::vector<std::optional<PriceTable>> tables_;
};

}  // namespace shardplan
