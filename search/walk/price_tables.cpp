#include "search/walk/price_tables.h"

#include <algorithm>
#include <bit>

#include "search/walk/parallel.h"

namespace shardplan {

void KnownFloors::add(const Plan& plan, double step_time_s) {
  const auto [known, is_new] = floors_s_.try_emplace(key_of(plan), step_time_s);
  known->second = std::min(known->second, step_time_s);
}

double KnownFloors::step_time_s(const Plan& plan) const {
  const auto known = floors_s_.find(key_of(plan));
  return known == floors_s_.end() ? 0 : known->second;
}

std::size_t KnownFloors::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = 0;
  for (const std::int64_t value : key) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    hash ^= hash >> 32;
  }
  return static_cast<std::size_t>(hash);
}

// The axes before kFirstFloor.
KnownFloors::Key KnownFloors::key_of(const Plan& plan) {
  Key key = {plan.tp, plan.cp,  plan.ep, plan.etp,
             plan.pp, plan.vpp, plan.dp, std::bit_cast<std::int64_t>(plan.moe_buffer_factor)};
  key.insert(key.end(), plan.layers_per_chunk.begin(), plan.layers_per_chunk.end());
  return key;
}

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
