#include "estimator/allocator/driver_addresses.h"

#include <algorithm>

#include "estimator/plan/units.h"

namespace shardplan {

std::int64_t DriverAddresses::take(std::int64_t bytes) {
  constexpr std::int64_t kPiece = 32 * kMiB;
  Rest lowest;  // of those that fit
  for (auto size = std::ranges::lower_bound(sizes_, bytes, {}, &SameSize::bytes);
       size != sizes_.end(); ++size) {
    const std::int64_t address = *size->addresses.begin();
    if (lowest.bytes == 0 || address < lowest.address) {
      lowest = {.address = address, .bytes = size->bytes};
    }
  }
  if (lowest.bytes > 0) {
    remove(lowest);
  } else {
    const std::int64_t size = round_up(bytes, kPiece);
    lowest_ -= size;
    lowest = {.address = lowest_, .bytes = size};
  }
  if (lowest.bytes > bytes) {
    add({.address = lowest.address + bytes, .bytes = lowest.bytes - bytes});
  }
  return lowest.address;
}

void DriverAddresses::give_back(std::int64_t address, std::int64_t bytes) {
  Rest joined = {.address = address, .bytes = bytes};
  const auto above = rests_.lower_bound({.address = address + bytes});
  if (above != rests_.end() && above->address == address + bytes) {
    const Rest rest = *above;
    joined.bytes += rest.bytes;
    remove(rest);
  }
  const auto below = rests_.lower_bound({.address = address});
  if (below != rests_.end() && below->address + below->bytes == address) {
    const Rest rest = *below;
    joined = {.address = rest.address, .bytes = rest.bytes + joined.bytes};
    remove(rest);
  }
  add(joined);
}

void DriverAddresses::add(const Rest& rest) {
  rests_.insert(rest);
  auto size = std::ranges::lower_bound(sizes_, rest.bytes, {}, &SameSize::bytes);
  if (size == sizes_.end() || size->bytes != rest.bytes) {
    size = sizes_.insert(size, {.bytes = rest.bytes});
  }
  size->addresses.insert(rest.address);
}

void DriverAddresses::remove(const Rest& rest) {
  rests_.erase(rest);
  const auto size = std::ranges::lower_bound(sizes_, rest.bytes, {}, &SameSize::bytes);
  size->addresses.erase(rest.address);
  if (size->addresses.empty()) {
    sizes_.erase(size);
  }
}

}  // namespace shardplan
