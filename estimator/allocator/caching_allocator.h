// A model of PyTorch's CUDACachingAllocator on one GPU of limited memory.
//
// The rules, from c10/cuda/CUDACachingAllocator.cpp (2.11, default settings): sizes round up to 512
// B; requests up to 1 MiB come from 2 MiB segments, below 10 MiB from 20 MiB segments, larger ones
// from segments of their own rounded up to 2 MiB; every stream has pools of its own; the smallest
// free block that fits is taken, the lowest address among equals; what is left of it becomes a free
// block where it is large enough; freed neighbours merge. When memory runs out the device is waited
// for and all segments without a live block are given back, once, before an allocation fails. With
// expandable segments each pool is one address range that is mapped page by page.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "estimator/allocator/driver_addresses.h"
#include "estimator/allocator/free_blocks.h"
#include "estimator/allocator/replay.h"
#include "estimator/allocator/sorted_arrays.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

// Requests up to it come from the small pool (kSmallSize). In bytes.
inline constexpr std::int64_t kSmallRequest = std::int64_t{1} << 20;
// Segments that larger requests share, and to what those of the largest are rounded (kLargeBuffer,
// kRoundLarge).
inline constexpr std::int64_t kLargeSegment = std::int64_t{20} << 20;
inline constexpr std::int64_t kSegmentRounding = std::int64_t{2} << 20;

// Whether a size, rounded to kAllocatorRounding, comes from the small pool.
constexpr bool is_small_request(std::int64_t size) {
  return size <= kSmallRequest;
}

// What is asked of the driver for a request that no free block fits (get_allocation_size).
std::int64_t segment_bytes(std::int64_t bytes);

// The allocator of one GPU that lends `capacity` bytes; plays one trace.
class CachingAllocator {
 public:
  static constexpr std::int32_t kNone = -1;  // no block

  CachingAllocator(AllocatorKind kind, std::int64_t capacity);
  void limit(std::int64_t capacity) { capacity_ = capacity; }  // from now on

  // The new block's number; kNone: out of memory.
  std::int32_t allocate(std::int64_t bytes, AllocationStream stream = AllocationStream::kCompute);

  void free(std::int32_t block);
  // Counts no longer as allocated, and is free after end_uses.
  void free_in_use(std::int32_t block);
  void end_uses();
  std::int64_t allocated() const { return allocated_; }
  std::int64_t peak_allocated() const { return peak_allocated_; }
  std::int64_t peak_reserved() const { return peak_reserved_; }
  // The least total that a refused segment would have brought: a capacity below it refuses the
  // same.
  std::int64_t smallest_refused() const { return smallest_refused_; }

 private:
  // A piece of a segment; prev and next are its neighbours in the same segment.
  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int32_t prev = -1;
    std::int32_t next = -1;
    std::int32_t pool = 0;  // which one it belongs to
    bool is_live = false;
    bool is_mapped = true;  // expandable segments: backed by pages
  };

  struct UnmappedBlock {
    std::int64_t address = 0;
    std::int32_t block = -1;
    friend bool operator<(const UnmappedBlock& a, const UnmappedBlock& b) {
      return a.address < b.address;
    }
  };

  struct Pool {
    std::int64_t page = 0;                // of expandable segments
    std::int64_t smallest_remainder = 0;  // what a split must leave
    SortedArrays<UnmappedBlock> unmapped;
  };

  // Indexed by block number.
  struct Blocks {
    std::vector<Block> items;
    Block& operator[](std::int32_t i) { return items[static_cast<std::size_t>(i)]; }
    const Block& operator[](std::int32_t i) const { return items[static_cast<std::size_t>(i)]; }
    std::size_t size() const { return items.size(); }
    void push_back(const Block& block) { items.push_back(block); }
  };

  Pool& pool_of(std::int32_t block) {
    return pools_[static_cast<std::size_t>(blocks_[block].pool)];
  }
  std::int32_t pool_number(std::int64_t size) const;

  void add_free(std::int32_t block) {
    const Block& added = blocks_[block];
    free_.insert(static_cast<std::size_t>(added.pool), block, added.size, added.address);
  }
  void remove_free(std::int32_t block) { free_.erase(block); }
  void add_unmapped(std::int32_t block);
  void remove_unmapped(std::int32_t block);

  std::int32_t make_block(const Block& block);

  // Puts a new block of `size` bytes in front of `block`, which keeps the rest.
  std::int32_t cut_front(std::int32_t block, std::int64_t size);

  // Takes a free or unmapped neighbour into `block`, which is in no pool's set.
  void merge(std::int32_t block, std::int32_t neighbour);

  // A free block that ends where the unmapped rest begins counts as large as it can grow.
  std::int64_t growing_size(std::int32_t block) const;

  std::int32_t take_free(std::int64_t size);
  bool is_refused(std::int64_t bytes);

  void reserve(std::int64_t bytes);
  std::int32_t take_new(std::int64_t size);

  bool has_room(std::int32_t block, std::int64_t size) const;

  // The lowest address where free and unmapped blocks in a row have room.
  std::int32_t lowest_room(const Pool& pool, std::int64_t size) const;

  // Maps pages over the front of an unmapped block and joins them with free neighbours.
  bool map_front(std::int32_t& block, std::int64_t size);

  std::int32_t grow(Pool& pool, std::int64_t size);

  // Gives the rest of a taken block back to its pool where the rest is large enough.
  void split(std::int32_t& block, std::int64_t size);

  // Gives back whole segments without a live block; of expandable ones, whole pages.
  void release_cached(std::size_t pool);

  void unmap(std::int32_t block);

  std::vector<std::int32_t> in_use_;
  bool is_expandable_ = false;
  std::int64_t capacity_ = 0;
  Blocks blocks_;
  std::vector<std::int32_t> unused_;  // numbers of blocks that are gone
  static constexpr std::size_t kNumPools = std::size_t{2} * kNumAllocationStreams;
  std::array<Pool, kNumPools> pools_;  // a small and a large one for every stream
  FreeBlocks<kNumPools> free_;
  AllocationStream stream_ = AllocationStream::kCompute;  // of the allocation under way
  DriverAddresses addresses_;
  std::int64_t allocated_ = 0;
  std::int64_t reserved_ = 0;
  std::int64_t peak_allocated_ = 0;
  std::int64_t peak_reserved_ = 0;
  std::int64_t smallest_refused_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace shardplan
