// The rules are those of caching_allocator.h.
#include "estimator/allocator/block_counts.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/allocator/replay.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

// The fewest bytes that a split leaves of a block for a request of `size`.
std::int64_t smallest_remainder(std::int64_t size) {
  return is_small_request(size) ? kAllocatorRounding : kSmallRequest + 1;
}

auto first_that_holds(auto& sizes, std::int64_t size) {
  return std::ranges::lower_bound(sizes, size, {}, &BlockCounts::Sized::bytes);
}

void remove(BlockCounts::Sizes& sizes, BlockCounts::Sizes::iterator at, std::int64_t count) {
  at->count -= count;
  if (at->count == 0) {
    sizes.erase(at);
  }
}

}  // namespace

void add(BlockCounts::Sizes& sizes, std::int64_t bytes, std::int64_t count) {
  const auto at = first_that_holds(sizes, bytes);
  if (at != sizes.end() && at->bytes == bytes) {
    at->count += count;
  } else if (count > 0) {
    sizes.insert(at, {.bytes = bytes, .count = count});
  }
}

namespace {

// Leaves `count` of these blocks so many bytes, fewer than they have.
void shrink(BlockCounts::Sizes& sizes, BlockCounts::Sizes::iterator at, std::int64_t bytes,
            std::int64_t count) {
  const bool keeps_place = at == sizes.begin() || std::prev(at)->bytes < bytes;
  if (keeps_place && at->count == count) {
    at->bytes = bytes;
    return;
  }
  remove(sizes, at, count);
  add(sizes, bytes, count);
}

}  // namespace

BlockCounts::Sizes& BlockCounts::pool_for(std::int64_t size) {
  return pools_[is_small_request(size) ? 0 : 1];
}

void BlockCounts::add_free(std::int64_t block_bytes, std::int64_t count) {
  const bool is_small = block_bytes == segment_bytes(kSmallRequest);
  add(pools_[is_small ? 0 : 1], block_bytes, count);
}

// A block that was cut is the smallest that holds the next tensor, until it no longer does.
std::int64_t BlockCounts::take(std::int64_t bytes, std::int64_t count, Sizes* made) {
  const std::int64_t size = round_up(bytes, kAllocatorRounding);
  Sizes& pool = pool_for(size);
  std::int64_t beyond = 0;
  while (count > 0) {
    const auto found = first_that_holds(pool, size);
    const bool is_free = found != pool.end();
    const std::int64_t block = is_free ? found->bytes : segment_bytes(size);
    const bool holds_one = count == 1 || block < 2 * size;
    const std::int64_t tensors = holds_one ? 1 : std::min(count, block / size);  // of a block
    const std::int64_t wanted = holds_one ? count : count / tensors;
    const std::int64_t blocks = is_free ? std::min(found->count, wanted) : wanted;
    if (!is_free && made != nullptr) {
      add(*made, block, blocks);
    }
    const std::int64_t rest = block - tensors * size;
    const bool splits = rest >= smallest_remainder(size);
    if (is_free && splits) {
      shrink(pool, found, rest, blocks);
    } else if (is_free) {
      remove(pool, found, blocks);
    } else if (splits) {
      add(pool, rest, blocks);
    }
    beyond += splits ? 0 : blocks * rest;
    count -= blocks * tensors;
  }
  return beyond;
}

// The freed tensor's block joins what was left of it, so that it is as before; only where a kept
// tensor takes of that rest do the two stay apart, and where other blocks are as large as the rest
// the addresses tell which is taken.
std::int64_t BlockCounts::take_beside(std::int64_t bytes, std::int64_t kept_bytes,
                                      std::int64_t count) {
  const std::int64_t size = round_up(bytes, kAllocatorRounding);
  const std::int64_t kept_size = round_up(kept_bytes, kAllocatorRounding);
  Sizes& pool = pool_for(size);
  const bool shares_pool = &pool == &pool_for(kept_size);
  std::int64_t beyond = 0;
  for (; count > 0; --count) {
    auto at = first_that_holds(pool, size);
    if (at == pool.end()) {
      const std::int64_t segment = segment_bytes(size);
      at = pool.insert(at, {.bytes = segment, .count = 1});
    }
    const std::int64_t block = at->bytes;
    if (!shares_pool || block < kept_size) {  // so are the blocks of all that follow
      return beyond + take(kept_bytes, count);
    }
    const std::int64_t rest = block - size;
    remove(pool, at, 1);
    const auto other = first_that_holds(pool, kept_size);
    const bool has_other = other != pool.end();
    const bool takes_rest = rest >= kept_size && (!has_other || rest <= other->bytes);
    if (takes_rest && has_other && rest == other->bytes) {
      return -1;
    }
    if (takes_rest) {
      add(pool, rest, 1);
    }
    beyond += take(kept_bytes);
    add(pool, takes_rest ? size : block, 1);
  }
  return beyond;
}

// Every size whose count changes must keep enough blocks that none of these turns takes its last.
std::int64_t BlockCounts::turns_alike(const Pools& before, std::int64_t smallest_bytes,
                                      std::int64_t most_takes) const {
  std::int64_t turns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const auto now = first_that_holds(pools_[pool], smallest_bytes);
    const auto then = first_that_holds(before[pool], smallest_bytes);
    if (!std::ranges::equal(now, pools_[pool].end(), then, before[pool].end(), {}, &Sized::bytes,
                            &Sized::bytes)) {
      return 0;
    }
    for (auto at = now, was = then; at != pools_[pool].end(); ++at, ++was) {
      const std::int64_t taken = was->count - at->count;
      const std::int64_t left = std::min(was->count, at->count) - most_takes;
      if (taken != 0 && left < 0) {
        return 0;
      }
      turns = taken > 0 ? std::min(turns, left / taken) : turns;
    }
  }
  return turns;
}

void BlockCounts::leave_again(const Pools& before, std::int64_t times) {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    for (Sized& blocks : pools_[pool]) {
      const auto then = first_that_holds(before[pool], blocks.bytes);
      const bool was_there = then != before[pool].end() && then->bytes == blocks.bytes;
      blocks.count += times * (blocks.count - (was_there ? then->count : 0));
    }
  }
}

}  // namespace shardplan
