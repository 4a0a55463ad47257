// Counts the blocks of PyTorch's caching allocator by size, without their addresses. Addresses
// decide only which neighbours a freed block joins, so the counts are exact for tensors that stay,
// and for tensors that are freed before anything else is allocated. Segments are not expandable and
// memory is unlimited.
#pragma once

#include <algorithm>
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

  // Allocates `count` tensors of so many bytes, one after the other. Returns the bytes of their
  // blocks beyond the tensors, rounded as the allocator rounds. Adds the segments that it makes to
  // `made`.
  std::int64_t take(std::int64_t bytes, std::int64_t count = 1, Sizes* made = nullptr);

  // Calls `once` for `count` equal turns and adds up what it returns: bytes beyond the tensors, or
  // -1 where addresses decide. A turn allocates at most `most_takes` tensors, none below
  // `smallest_bytes`. A turn chooses by the sizes that there are, so turns are alike until a size
  // runs out; those are not played again.
  template <class Once>
  std::int64_t repeat(std::int64_t count, std::int64_t smallest_bytes, std::int64_t most_takes,
                      const Once& once) {
    std::int64_t beyond = 0;
    Pools before;
    for (std::int64_t turn = 1; turn <= count; ++turn) {
      before = pools_;
      const std::int64_t more = once();
      if (more < 0) {
        return -1;
      }
      const std::int64_t alike =
          std::min(count - turn, turns_alike(before, smallest_bytes, most_takes));
      if (alike > 0) {
        leave_again(before, alike);
        turn += alike;
      }
      beyond += (1 + alike) * more;
    }
    return beyond;
  }

  // Adds `count` free blocks of so many bytes, whole segments.
  void add_free(std::int64_t block_bytes, std::int64_t count);

  // Allocates, `count` times, a tensor of so many bytes and one of `kept_bytes`, and frees the
  // first. Returns the bytes of the kept tensors' blocks beyond them, or -1 where addresses decide.
  std::int64_t take_beside(std::int64_t bytes, std::int64_t kept_bytes, std::int64_t count = 1);

 private:
  using Pools = std::array<Sizes, 2>;  // small and large requests

  Sizes& pool_for(std::int64_t size);
  // How many further turns choose as the turn chose that began with `before`.
  std::int64_t turns_alike(const Pools& before, std::int64_t smallest_bytes,
                           std::int64_t most_takes) const;
  // Changes the counts once more for each of `times` turns, as they changed since `before`.
  void leave_again(const Pools& before, std::int64_t times);

  Pools pools_;
};

// Adds `count` blocks of a size to a list.
void add(BlockCounts::Sizes& sizes, std::int64_t bytes, std::int64_t count);

}  // namespace shardplan
