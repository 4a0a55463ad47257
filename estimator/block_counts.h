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
    friend bool operator==(const Sized&, const Sized&) = default;
  };
  using Sizes = std::vector<Sized>;  // ascending

  // `count` tensors of so many bytes, one after the other. Returns what their blocks have beyond
  // the tensors, rounded as the allocator rounds. `made` gets the segments that they need.
  std::int64_t take(std::int64_t bytes, std::int64_t count = 1, Sizes* made = nullptr);

  // `once` takes the tensors of one turn, none below `smallest_bytes`, and returns what their
  // blocks have beyond them, or -1; so does this of `count` equal turns. A turn that leaves the
  // blocks that can hold such tensors as they were is like all that follow.
  template <class Once>
  std::int64_t repeat(std::int64_t count, std::int64_t smallest_bytes, const Once& once) {
    std::int64_t beyond = 0;
    for (std::int64_t turn = 1; turn <= count; ++turn) {
      const Pools before = pools_;
      const std::int64_t more = once();
      if (more < 0) {
        return -1;
      }
      beyond += more;
      if (turn < count && holds_the_same(before, smallest_bytes)) {
        leave_again(before, count - turn);
        return beyond + (count - turn) * more;
      }
    }
    return beyond;
  }

  // `count` free blocks of so many bytes, each a segment or a part of one.
  void add_free(std::int64_t block_bytes, std::int64_t count);

  // `count` times: a tensor of so many bytes, one of `kept_bytes`, and the first is freed. Returns
  // what the kept ones' blocks have beyond them, or -1 where addresses decide.
  std::int64_t take_beside(std::int64_t bytes, std::int64_t kept_bytes, std::int64_t count = 1);

 private:
  using Pools = std::array<Sizes, 2>;  // small and large requests

  Sizes& pool_for(std::int64_t size);
  // Of the blocks of so many bytes and more.
  bool holds_the_same(const Pools& before, std::int64_t bytes) const;
  // What was left since then, some more times.
  void leave_again(const Pools& before, std::int64_t times);

  Pools pools_;
};

// `count` more of that size.
void add(BlockCounts::Sizes& sizes, std::int64_t bytes, std::int64_t count);

}  // namespace shardplan
