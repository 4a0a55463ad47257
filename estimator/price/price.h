// One price for search: the peak and the step time of a plan, equal to estimate_memory and
// estimate_step_time to the byte and to the last bit, at a fraction of their cost.
#pragma once

#include <cstdint>
#include <memory>

#include "estimator/plan/job.h"

namespace shardplan {

struct Price {
  std::int64_t allocated_bytes = 0;  // largest stage
  std::int64_t allocated_stage = 0;
  std::int64_t device_used_bytes = 0;   // sound upper bound: reserved by its upper factor + outside
  std::int64_t device_least_bytes = 0;  // allocated + outside: no smaller card holds the plan
  double step_time_s = 0;
  double tokens_per_s_per_gpu = 0;
};

struct PricePieces;

// Pieces that depend on few axes, computed once and reused: of neighbouring plans only what differs
// is looked up again. Bounded memory. One table per thread.
class PriceTable {
 public:
  explicit PriceTable(const Job& job);
  ~PriceTable();
  PriceTable(PriceTable&&) noexcept;
  PriceTable& operator=(PriceTable&&) noexcept;
  PriceTable(const PriceTable&) = delete;
  PriceTable& operator=(const PriceTable&) = delete;

  const Job& job() const;
  PricePieces& pieces() { return *pieces_; }

 private:
  std::unique_ptr<PricePieces> pieces_;
};

PriceTable build_price_table(const Job& job);

// The plan must be valid (first_broken_rule is nullptr). Allocates nothing once its pieces are
// there.
Price price(PriceTable& table, const Plan& plan);

}  // namespace shardplan
