// Blocks of PyTorch's caching allocator by size, without addresses: what tensors get that are never
// freed, or that are freed before anything else is allocated. Exact there, since only a freed
// block's neighbours ask where it lies; segments are not expandable and memory is unlimited.
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

  // `count` tensors of so many bytes, one after the other. Returns what their blocks have beyond
  // the tensors, rounded as the allocator rounds. `made` gets the segments that they need.
  std::int64_t take(std::int64_t bytes, std::int64_t count = 1, Sizes* made = nullptr);

  // `once` takes the tensors of one turn, at most `most_takes` and none below `smallest_bytes`, and
  // returns what their blocks have beyond them, or -1; so does this of `count` equal turns. Which
  // blocks a turn takes depends on the sizes that there are, so that turns are alike until one of
  // them runs out.
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

  // `count` free blocks of so many bytes, each a segment or a part of one.
  void add_free(std::int64_t block_bytes, std::int64_t count);

  // `count` times: a tensor of so many bytes, one of `kept_bytes`, and the first is freed. Returns
  // what the kept ones' blocks have beyond them, or -1 where addresses decide.
  std::int64_t take_beside(std::int64_t bytes, std::int64_t kept_bytes, std::int64_t count = 1);

 private:
  using Pools = std::array<Sizes, 2>;  // small and large requests

  Sizes& pool_for(std::int64_t size);
  // How many turns do the same as the one since then.
  std::int64_t turns_alike(const Pools& before, std::int64_t smallest_bytes,
                           std::int64_t most_takes) const;
  // What was left since then, some more times.
  void leave_again(const Pools& before, std::int64_t times);

  Pools pools_;
};

// `count` more of that size.
void add(BlockCounts::Sizes& sizes, std::int64_t bytes, std::int64_t count);

}  // namespace shardplan
