#include "estimator/driver_addresses.h"

#include <iterator>
#include <limits>

#include "estimator/units.h"

namespace shardplan {

std::int64_t DriverAddresses::take(std::int64_t bytes) {
  constexpr std::int64_t kPiece = 32 * kMiB;
  constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();
  std::int64_t address = kNowhere;
  std::int64_t size = 0;
  for (auto fits = addresses_.lower_bound(bytes); fits != addresses_.end(); ++fits) {
    if (*fits->second.begin() < address) {
      address = *fits->second.begin();
      size = fits->first;
    }
  }
  if (address == kNowhere) {
    size = round_up(bytes, kPiece);
    lowest_ -= size;
    address = lowest_;
  } else {
    remove(address, size);
  }
  if (size > bytes) {
    add(address + bytes, size - bytes);
  }
  return address;
}

void DriverAddresses::give_back(std::int64_t address, std::int64_t bytes) {
  const auto after = rests_.find(address + bytes);
  if (after != rests_.end()) {
    const std::int64_t more = after->second;
    remove(address + bytes, more);
    bytes += more;
  }
  const auto above = rests_.lower_bound(address);
  if (above != rests_.begin()) {
    const auto [begin, size] = *std::prev(above);
    if (begin + size == address) {
      remove(begin, size);
      address = begin;
      bytes += size;
    }
  }
  add(address, bytes);
}

void DriverAddresses::add(std::int64_t address, std::int64_t bytes) {
  rests_.emplace(address, bytes);
  addresses_[bytes].insert(address);
}

void DriverAddresses::remove(std::int64_t address, std::int64_t bytes) {
  rests_.erase(address);
  const auto same = addresses_.find(bytes);
  same->second.erase(address);
  if (same->second.empty()) {
    addresses_.erase(same);
  }
}

}  // namespace shardplan
