#include "search/price_tables.h"

#include <omp.h>

#include "search/parallel.h"

namespace shardplan {

PriceTables::PriceTables(const Job& job, std::int64_t threads)
    : job_(job), tables_(static_cast<std::size_t>(num_threads(threads))) {}

PriceTable& PriceTables::of_this_thread() {
  std::optional<PriceTable>& table = tables_[static_cast<std::size_t>(omp_get_thread_num())];
  if (!table) {
    table = build_price_table(job_);
  }
  return *table;
}

}  // namespace shardplan
