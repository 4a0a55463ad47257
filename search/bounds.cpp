#include "search/bounds.h"

namespace shardplan {

// No floor is known yet.
Bounds::Bounds(const Job&, const SettledRules&, std::int64_t, PriceTable&) {}

std::optional<Bound> Bounds::cuts(const Prefix&, const Answers&) {
  return std::nullopt;
}

std::int64_t Bounds::allocated_floor(const Prefix&) {
  return 0;
}

double Bounds::step_time_floor(const Prefix&) {
  return 0;
}

}  // namespace shardplan
