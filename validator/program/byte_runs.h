// Runs of bytes of a program's arenas that the same operations have used, for the passes that find
// what must follow what.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>

#include "validator/program/program.h"

namespace shardplan {

// Users: what is known of a run; that of all bytes at first is Users{}.
template <class Users>
class ByteRuns {
 public:
  ByteRuns() {
    for (Runs& arena : arenas_) { arena.emplace(0, Users{}); }
  }

  // Calls visit(Users&) for every run that the bytes of a present view consist of.
  template <class Visit>
  void visit(const Program& program, const View& view, const Visit& visit) {
    const Tensor& tensor = program.tensors[static_cast<std::size_t>(view.tensor)];
    const std::int64_t size = bytes_of(tensor.dtype);
    Runs& arena = arenas_[static_cast<std::size_t>(tensor.arena)];
    const std::int64_t begin = tensor.offset + view.offset * size;
    const std::int64_t end = tensor.offset + view.end() * size;
    split(arena, begin);
    split(arena, end);
    for (auto run = arena.find(begin); run->first < end; ++run) { visit(run->second); }
  }

 private:
  using Runs = std::map<std::int64_t, Users>;  // by first byte

  static void split(Runs& arena, std::int64_t at) {
    const auto behind = arena.upper_bound(at);
    if (const auto run = std::prev(behind); run->first != at) {
      arena.emplace_hint(behind, at, run->second);
    }
  }

  std::array<Runs, 2> arenas_;
};

}  // namespace shardplan
