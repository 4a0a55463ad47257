// Prices and floors that all searches of a job share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "estimator/price/price.h"

namespace shardplan {

// The least step times of plans that cut the model in one way, as a search of all of them found.
class KnownFloors {
 public:
  bool is_empty() const { return floors_s_.empty(); }
  void add(const Plan& plan, double step_time_s);
  // 0: not known.
  double step_time_s(const Plan& plan) const;

 private:
  using Key = std::vector<std::int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  static Key key_of(const Plan& plan);

  std::unordered_map<Key, double, KeyHash> floors_s_;
};

// One table of prices for every thread of in_parallel, built when the thread first asks.
class PriceTables {
 public:
  PriceTables(const Job& job, std::int64_t threads);
  PriceTable& of(std::size_t thread);
  KnownFloors& floors() { return floors_; }

 private:
  const Job& job_;
  std::vector<std::optional<PriceTable>> tables_;
  KnownFloors floors_;
};

}  // namespace shardplan
