#include "search/price_tables.h"

#include "search/parallel.h"

namespace shardplan {

PriceTables::PriceTables(const Job& job, std::int64_t threads)
    : job_(job), tables_(static_cast<std::size_t>(num_threads(threads))) {}

PriceTable& PriceTables::of(std::size_t thread) {
  std::optional<PriceTable>& table = tables_[thread];
  if (!table) {
    table = build_price_table(job_);
  }
  return *table;
}

}  // namespace shardplan
