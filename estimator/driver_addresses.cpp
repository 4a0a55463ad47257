#include "estimator/driver_addresses.h"

#include <algorithm>
#include <functional>

#include "estimator/units.h"

namespace shardplan {

std::int64_t DriverAddresses::take(std::int64_t bytes) {
  constexpr std::int64_t kPiece = 32 * kMiB;
  SameSize* lowest = nullptr;
  for (auto rests = std::ranges::lower_bound(rests_, bytes, {}, &SameSize::bytes);
       rests != rests_.end(); ++rests) {
    const bool has_any = !rests->addresses.empty();
    if (has_any && (lowest == nullptr || rests->addresses.back() < lowest->addresses.back())) {
      lowest = &*rests;
    }
  }
  std::int64_t size = round_up(bytes, kPiece);
  std::int64_t address = lowest_ - size;
  if (lowest != nullptr) {
    size = lowest->bytes;
    address = lowest->addresses.back();
    lowest->addresses.pop_back();
  } else {
    lowest_ = address;
  }
  if (size > bytes) {
    add(address + bytes, size - bytes);
  }
  return address;
}

void DriverAddresses::give_back(std::int64_t address, std::int64_t bytes) {
  // At most one begins where this ends, and one ends where it begins.
  for (SameSize& rests : rests_) {
    if (remove(address + bytes, rests)) {
      bytes += rests.bytes;
      break;
    }
  }
  for (SameSize& rests : rests_) {
    if (remove(address - rests.bytes, rests)) {
      address -= rests.bytes;
      bytes += rests.bytes;
      break;
    }
  }
  add(address, bytes);
}

void DriverAddresses::add(std::int64_t address, std::int64_t bytes) {
  auto rests = std::ranges::lower_bound(rests_, bytes, {}, &SameSize::bytes);
  if (rests == rests_.end() || rests->bytes != bytes) {
    rests = rests_.insert(rests, {.bytes = bytes});
  }
  std::vector<std::int64_t>& addresses = rests->addresses;
  addresses.insert(std::ranges::lower_bound(addresses, address, std::greater()), address);
}

bool DriverAddresses::remove(std::int64_t address, SameSize& rests) {
  const auto at = std::ranges::lower_bound(rests.addresses, address, std::greater());
  if (at == rests.addresses.end() || *at != address) {
    return false;
  }
  rests.addresses.erase(at);
  return true;
}

}  // namespace shardplan
