// The free blocks of an allocator's pools, in the order in which it looks for one that fits: by
// size, then by address. Replays insert and erase millions, mostly of pools with fewer than a
// hundred: each is in a short list of those of nearly its size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "estimator/allocator/sorted_arrays.h"

namespace shardplan {

// Blocks are named by small numbers, and every one is in one pool at most.
template <std::size_t kPools>
class FreeBlocks {
 public:
  static constexpr std::int32_t kNone = -1;

  FreeBlocks() {
    first_.fill(kNone);
    last_met_.fill(kNone);
  }

  void insert(std::size_t pool, std::int32_t block, std::int64_t size, std::int64_t address) {
    if (static_cast<std::size_t>(block) >= nodes_.size()) {
      nodes_.resize(static_cast<std::size_t>(block) + 1);
    }
    const std::size_t list = list_of(pool, size);
    if (num_in_list_[list] == kMostInList) {
      node(block) = {.size = size,
                     .address = address,
                     .list = static_cast<std::uint32_t>(list),
                     .is_beyond = true};
      beyond_[pool].insert({.size = size, .address = address, .block = block});
      return;
    }
    ++num_in_list_[list];
    const auto is_lower = [&](std::int32_t other) {
      return other == kNone || is_before(node(other), size, address);
    };
    std::int32_t before = last_met_[list];
    std::int32_t after = before == kNone ? kNone : node(before).after;
    while (after != kNone && is_lower(after)) {
      before = after;
      after = node(after).after;
    }
    while (!is_lower(before)) {
      after = before;
      before = node(before).before;
    }
    node(block) = {.size = size,
                   .address = address,
                   .list = static_cast<std::uint32_t>(list),
                   .before = before,
                   .after = after};
    (before == kNone ? first_[list] : node(before).after) = block;
    if (after != kNone) {
      node(after).before = block;
    }
    last_met_[list] = block;
    used_[list / kWordBits] |= bit(list);
  }

  void erase(std::int32_t block) {
    const auto [size, address, list, before, after, is_beyond] = node(block);
    if (is_beyond) {
      beyond_[list / kLists].erase({.size = size, .address = address, .block = block});
      return;
    }
    --num_in_list_[list];
    last_met_[list] = before != kNone ? before : after;
    if (after != kNone) {
      node(after).before = before;
    }
    if (before != kNone) {
      node(before).after = after;
      return;
    }
    first_[list] = after;
    if (after == kNone) {
      used_[list / kWordBits] &= ~bit(list);
    }
  }

  // The first block of at least that size; kNone if there is none.
  std::int32_t at_least(std::size_t pool, std::int64_t size) const {
    const std::size_t list = list_of(pool, size);
    return first_from(pool, list, {.size = size, .address = kLowest});
  }

  // kNone behind the last one of the pool.
  std::int32_t after(std::int32_t block) const {
    const Node& of = node(block);
    return first_from(of.list / kLists, of.list, {.size = of.size, .address = of.address + 1});
  }

 private:
  struct Node {
    std::int64_t size = 0;
    std::int64_t address = 0;
    std::uint32_t list = 0;
    std::int32_t before = kNone;  // of the same list
    std::int32_t after = kNone;
    bool is_beyond = false;
  };
  struct Beyond {
    std::int64_t size = 0;
    std::int64_t address = 0;
    std::int32_t block = kNone;
    friend bool operator<(const Beyond& a, const Beyond& b) {
      return a.size != b.size ? a.size < b.size : a.address < b.address;
    }
  };
  static constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();

  // A list for each of 16 parts of every doubling of the size, in units of the least block.
  static constexpr int kUnitBits = 9;
  static constexpr int kPartBits = 4;
  static constexpr std::uint8_t kMostInList = 200;
  static constexpr std::size_t kWordBits = 64;
  static constexpr std::size_t kWords = 13;
  static constexpr std::size_t kLists = kWords * kWordBits;

  static std::size_t list_of(std::size_t pool, std::int64_t size) {
    const std::uint64_t units = static_cast<std::uint64_t>(size) >> kUnitBits;
    const int part = std::max(static_cast<int>(std::bit_width(units)) - 1 - kPartBits, 0);
    return pool * kLists + (static_cast<std::size_t>(part) << kPartBits) +
           static_cast<std::size_t>(units >> part);
  }
  static std::uint64_t bit(std::size_t at) { return std::uint64_t{1} << (at % kWordBits); }
  static bool is_before(const Node& node, std::int64_t size, std::int64_t address) {
    return node.size != size ? node.size < size : node.address < address;
  }

  Node& node(std::int32_t block) { return nodes_[static_cast<std::size_t>(block)]; }
  const Node& node(std::int32_t block) const { return nodes_[static_cast<std::size_t>(block)]; }

  // The first block that does not come before a place, which would lie in this list.
  std::int32_t first_from(std::size_t pool, std::size_t list, const Beyond& place) const {
    std::int32_t block = first_[list];
    while (block != kNone && is_before(node(block), place.size, place.address)) {
      block = node(block).after;
    }
    block = block != kNone ? block : first_behind(list);
    if (beyond_[pool].empty()) {
      return block;
    }
    const auto beyond = beyond_[pool].lower_bound(place);
    const bool is_first =
        beyond != beyond_[pool].end() &&
        (block == kNone || !is_before(node(block), beyond->size, beyond->address));
    return is_first ? beyond->block : block;
  }

  // The first block of the lists behind one, of the same pool.
  std::int32_t first_behind(std::size_t list) const {
    const std::size_t end = (list / kLists + 1) * kWords;  // no pool uses its last list
    std::size_t word = (list + 1) / kWordBits;
    std::uint64_t lists = used_[word] & ~(bit(list + 1) - 1);
    while (lists == 0) {
      if (++word >= end) {
        return kNone;
      }
      lists = used_[word];
    }
    return first_[word * kWordBits + static_cast<std::size_t>(std::countr_zero(lists))];
  }

  std::vector<Node> nodes_;  // by block
  std::array<std::int32_t, kPools * kLists> first_;
  // Where a list was last changed: blocks that are freed in a row mostly lie side by side.
  std::array<std::int32_t, kPools * kLists> last_met_;
  std::array<std::uint8_t, kPools * kLists> num_in_list_{};
  std::array<std::uint64_t, kPools * kWords> used_{};  // a bit for every list that has blocks
  // By pool: blocks for which a list had no room, of which there may be thousands.
  std::array<SortedArrays<Beyond>, kPools> beyond_;
};

}  // namespace shardplan
