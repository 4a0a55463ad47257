// Blocks of PyTorch's caching allocator by size, without addresses: what tensors get that are never
// freed, or that are freed before anything else is allocated. Exact there, since only a freed
// block's neighbours ask where it lies; segments are not expandable and memory is unlimited.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace shardplan {

class BlockCounts {
 public:
  struct Sized {
    std::int64_t bytes = 0;
    std::int64_t count = 0;
  };
  using Sizes = std::vector<Sized>;  // ascending

  // `count` tensors of so many bytes, one after the other. Returns what their blocks have beyond
  // the tensors, rounded as the allocator rounds. `made` gets the segments that they need.
  std::int64_t take(std::int64_t bytes, std::int64_t count = 1, Sizes* made = nullptr);

  // `count` free blocks of so many bytes, each a segment or a part of one.
  void add_free(std::int64_t block_bytes, std::int64_t count);

  // `count` times: a tensor of so many bytes, one of `kept_bytes`, and the first is freed. Returns
  // what the kept ones' blocks have beyond them, or -1 where addresses decide.
  std::int64_t take_beside(std::int64_t bytes, std::int64_t kept_bytes, std::int64_t count);

 private:
  Sizes& pool_for(std::int64_t size);

  std::array<Sizes, 2> pools_;  // small and large requests
};

// `count` more of that size.
void add(BlockCounts::Sizes& sizes, std::int64_t bytes, std::int64_t count);

}  // namespace shardplan
