#include "estimator/allocator/caching_allocator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kSmallSegment = 2 * kMiB;  // kSmallBuffer, also a page of the small pool
constexpr std::int64_t kOwnSegment = 10 * kMiB;   // kMinLargeAlloc
constexpr std::int64_t kAddressRange = std::int64_t{1} << 50;  // of an expandable segment

}  // namespace

std::int64_t segment_bytes(std::int64_t bytes) {
  const std::int64_t size = round_up(bytes, kAllocatorRounding);
  if (is_small_request(size)) {
    return kSmallSegment;
  }
  return size < kOwnSegment ? kLargeSegment : round_up(size, kSegmentRounding);
}

CachingAllocator::CachingAllocator(AllocatorKind kind, std::int64_t capacity)
    : is_expandable_(kind == AllocatorKind::kCachingExpandable), capacity_(capacity) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const bool is_small = i % 2 == 0;
    pools_[i].page = is_small ? kSmallSegment : kLargeSegment;
    pools_[i].smallest_remainder =
        is_small || is_expandable_ ? kAllocatorRounding : kSmallRequest + 1;
    if (is_expandable_) {
      add_unmapped(make_block({.address = static_cast<std::int64_t>(i) * kAddressRange,
                               .size = kAddressRange,
                               .pool = static_cast<std::int32_t>(i),
                               .is_mapped = false}));
    }
  }
}

std::int32_t CachingAllocator::allocate(std::int64_t bytes, AllocationStream stream) {
  stream_ = stream;
  const std::int64_t size = round_up(bytes, kAllocatorRounding);
  std::int32_t block = take_free(size);
  if (block == kNone) {
    block = take_new(size);
  }
  if (block == kNone) {
    end_uses();
    for (std::size_t pool = 0; pool < kNumPools; ++pool) { release_cached(pool); }
    block = take_new(size);
  }
  if (block == kNone) {
    return kNone;
  }
  split(block, size);
  blocks_[block].is_live = true;
  allocated_ += blocks_[block].size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return block;
}

void CachingAllocator::free_in_use(std::int32_t block) {
  allocated_ -= blocks_[block].size;
  in_use_.push_back(block);
}

void CachingAllocator::end_uses() {
  for (const std::int32_t block : std::exchange(in_use_, {})) {
    allocated_ += blocks_[block].size;
    free(block);
  }
}

void CachingAllocator::free(std::int32_t block) {
  blocks_[block].is_live = false;
  allocated_ -= blocks_[block].size;
  merge(block, blocks_[block].prev);
  merge(block, blocks_[block].next);
  add_free(block);
}

std::int32_t CachingAllocator::pool_number(std::int64_t size) const {
  return 2 * static_cast<std::int32_t>(stream_) + (is_small_request(size) ? 0 : 1);
}

void CachingAllocator::add_unmapped(std::int32_t block) {
  pool_of(block).unmapped.insert({.address = blocks_[block].address, .block = block});
}

void CachingAllocator::remove_unmapped(std::int32_t block) {
  pool_of(block).unmapped.erase({.address = blocks_[block].address, .block = block});
}

std::int32_t CachingAllocator::make_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<std::int32_t>(blocks_.size()) - 1;
  }
  const std::int32_t number = unused_.back();
  unused_.pop_back();
  blocks_[number] = block;
  return number;
}

std::int32_t CachingAllocator::cut_front(std::int32_t block, std::int64_t size) {
  const std::int32_t front = make_block({.address = blocks_[block].address,
                                         .size = size,
                                         .prev = blocks_[block].prev,
                                         .next = block,
                                         .pool = blocks_[block].pool,
                                         .is_mapped = blocks_[block].is_mapped});
  if (blocks_[front].prev != kNone) {
    blocks_[blocks_[front].prev].next = front;
  }
  blocks_[block].prev = front;
  blocks_[block].address += size;
  blocks_[block].size -= size;
  return front;
}

void CachingAllocator::merge(std::int32_t block, std::int32_t neighbour) {
  if (neighbour == kNone || blocks_[neighbour].is_live ||
      blocks_[neighbour].is_mapped != blocks_[block].is_mapped) {
    return;
  }
  blocks_[neighbour].is_mapped ? remove_free(neighbour) : remove_unmapped(neighbour);
  if (blocks_[block].prev == neighbour) {
    blocks_[block].address = blocks_[neighbour].address;
    blocks_[block].prev = blocks_[neighbour].prev;
    if (blocks_[block].prev != kNone) {
      blocks_[blocks_[block].prev].next = block;
    }
  } else {
    blocks_[block].next = blocks_[neighbour].next;
    if (blocks_[block].next != kNone) {
      blocks_[blocks_[block].next].prev = block;
    }
  }
  blocks_[block].size += blocks_[neighbour].size;
  unused_.push_back(neighbour);
}

std::int64_t CachingAllocator::growing_size(std::int32_t block) const {
  const std::int32_t next = blocks_[block].next;
  const bool grows = next != kNone && !blocks_[next].is_mapped;
  return blocks_[block].size + (grows ? blocks_[next].size : 0);
}

std::int32_t CachingAllocator::take_free(std::int64_t size) {
  const std::size_t pool = static_cast<std::size_t>(pool_number(size));
  std::int32_t best = free_.at_least(pool, size);
  if (best == kNone) {
    return kNone;
  }
  if (is_expandable_) {
    for (std::int32_t next = free_.after(best);
         next != kNone && growing_size(next) < growing_size(best); next = free_.after(next)) {
      best = next;
    }
  }
  remove_free(best);
  return best;
}

bool CachingAllocator::is_refused(std::int64_t bytes) {
  if (reserved_ + bytes <= capacity_) {
    return false;
  }
  smallest_refused_ = std::min(smallest_refused_, reserved_ + bytes);
  return true;
}

void CachingAllocator::reserve(std::int64_t bytes) {
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

std::int32_t CachingAllocator::take_new(std::int64_t size) {
  if (is_expandable_) {
    return grow(pools_[static_cast<std::size_t>(pool_number(size))], size);
  }
  const std::int64_t bytes = segment_bytes(size);
  if (is_refused(bytes)) {
    return kNone;
  }
  reserve(bytes);
  return make_block({.address = addresses_.take(bytes), .size = bytes, .pool = pool_number(size)});
}

bool CachingAllocator::has_room(std::int32_t block, std::int64_t size) const {
  std::int64_t bytes = 0;
  while (bytes < size && block != kNone && !blocks_[block].is_live) {
    bytes += blocks_[block].size;
    block = blocks_[block].next;
  }
  return bytes >= size;
}

std::int32_t CachingAllocator::lowest_room(const Pool& pool, std::int64_t size) const {
  for (const UnmappedBlock& unmapped : pool.unmapped) {
    const std::int32_t before = blocks_[unmapped.block].prev;
    const bool starts_before = before != kNone && !blocks_[before].is_live;
    const std::int32_t first = starts_before ? before : unmapped.block;
    if (has_room(first, size)) {
      return first;
    }
  }
  throw std::logic_error("replay_allocator: the address range is exhausted");
}

bool CachingAllocator::map_front(std::int32_t& block, std::int64_t size) {
  Pool& pool = pool_of(block);
  const std::int64_t bytes = round_up(size, pool.page);
  if (is_refused(bytes)) {
    return false;
  }
  reserve(bytes);
  remove_unmapped(block);
  if (bytes < blocks_[block].size) {
    const std::int32_t mapped = cut_front(block, bytes);
    add_unmapped(block);
    block = mapped;
  }
  blocks_[block].is_mapped = true;
  merge(block, blocks_[block].prev);
  merge(block, blocks_[block].next);
  add_free(block);
  return true;
}

std::int32_t CachingAllocator::grow(Pool& pool, std::int64_t size) {
  std::int32_t block = lowest_room(pool, size);
  if (!blocks_[block].is_mapped && !map_front(block, std::min(blocks_[block].size, size))) {
    return kNone;
  }
  while (blocks_[block].size < size) {
    std::int32_t next = blocks_[block].next;
    const std::int64_t missing = size - blocks_[block].size;
    if (!map_front(next, std::min(missing, blocks_[next].size))) {
      return kNone;
    }
    block = next;
  }
  remove_free(block);
  return block;
}

void CachingAllocator::split(std::int32_t& block, std::int64_t size) {
  if (blocks_[block].size - size < pool_of(block).smallest_remainder) {
    return;
  }
  const std::int32_t rest = block;
  block = cut_front(rest, size);
  add_free(rest);
}

void CachingAllocator::release_cached(std::size_t pool) {
  std::vector<std::int32_t> candidates;
  for (std::int32_t block = free_.at_least(pool, 0); block != kNone; block = free_.after(block)) {
    candidates.push_back(block);
  }
  for (const std::int32_t block : candidates) {
    if (is_expandable_) {
      unmap(block);
    } else if (blocks_[block].prev == kNone && blocks_[block].next == kNone) {
      remove_free(block);
      addresses_.give_back(blocks_[block].address, blocks_[block].size);
      reserved_ -= blocks_[block].size;
      unused_.push_back(block);
    }
  }
}

void CachingAllocator::unmap(std::int32_t block) {
  const Pool& pool = pool_of(block);
  const std::int64_t begin = round_up(blocks_[block].address, pool.page);
  const std::int64_t end = (blocks_[block].address + blocks_[block].size) / pool.page * pool.page;
  if (begin >= end) {
    return;
  }
  remove_free(block);
  if (begin > blocks_[block].address) {
    add_free(cut_front(block, begin - blocks_[block].address));
  }
  if (end < blocks_[block].address + blocks_[block].size) {
    const std::int32_t rest = block;
    block = cut_front(rest, end - begin);
    add_free(rest);
  }
  reserved_ -= end - begin;
  blocks_[block].is_mapped = false;
  merge(block, blocks_[block].prev);
  merge(block, blocks_[block].next);
  add_unmapped(block);
}

}  // namespace shardplan
