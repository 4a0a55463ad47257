#include "estimator/driver_addresses.h"

#include <algorithm>
#include <iterator>

#include "estimator/units.h"

namespace shardplan {

std::int64_t DriverAddresses::take(std::int64_t bytes) {
  constexpr std::int64_t kPiece = 32 * kMiB;
  auto rest = std::ranges::find_if(rests_, [bytes](const auto& r) { return r.second >= bytes; });
  if (rest == rests_.end()) {
    const std::int64_t pieces = round_up(bytes, kPiece);
    lowest_ -= pieces;
    rest = rests_.emplace(lowest_, pieces).first;
  }
  const auto [address, size] = *rest;
  rests_.erase(rest);
  if (size > bytes) {
    rests_.emplace(address + bytes, size - bytes);
  }
  return address;
}

void DriverAddresses::give_back(std::int64_t address, std::int64_t bytes) {
  auto here = rests_.emplace(address, bytes).first;
  const auto after = std::next(here);
  if (after != rests_.end() && here->first + here->second == after->first) {
    here->second += after->second;
    rests_.erase(after);
  }
  if (here != rests_.begin()) {
    const auto before = std::prev(here);
    if (before->first + before->second == here->first) {
      before->second += here->second;
      rests_.erase(here);
    }
  }
}

}  // namespace shardplan
