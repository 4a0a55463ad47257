// Collectives by copies: what all members write, put together, is what the collective gives; and no
// member reads another's memory.
#include "validator/program/peer_copies.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

namespace shardplan {
namespace {

constexpr std::int64_t kPart = 4;
constexpr std::int64_t kIn = 8;    // where what a member gives begins in its second arena
constexpr std::int64_t kOut = 72;  // and what it receives
constexpr std::int64_t kArena = 136;

// The memory of all members, zero at first.
struct Group {
  explicit Group(std::int64_t size, std::int64_t here = 0)
      : arenas(static_cast<std::size_t>(2 * size), std::string(kArena, '\0')) {
    for (std::int64_t i = 0; i < (here > 0 ? here : size); ++i) { present.push_back(i); }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(arenas.size()) / 2; }
  char* arena(std::int64_t member, std::size_t which) {
    return arenas[static_cast<std::size_t>(2 * member) + which].data();
  }
  // Parts by member of what lies at an offset of a member's second arena.
  std::vector<Piece> parts(std::int64_t member, std::int64_t offset) {
    std::vector<Piece> pieces;
    for (std::int64_t i = 0; i < size(); ++i) {
      pieces.push_back({.data = arena(member, 1) + offset + i * kPart, .bytes = kPart});
    }
    return pieces;
  }
  PeerCopies of(std::int64_t member) {
    std::vector<ArenaPair> pairs;
    std::vector<std::int64_t> stand_ins;
    for (std::int64_t i = 0; i < size(); ++i) {
      const bool is_here = std::ranges::find(present, i) != present.end();
      stand_ins.push_back(is_here ? i : stand_in_for(member, present));
      pairs.push_back({arena(stand_ins.back(), 0), arena(stand_ins.back(), 1)});
    }
    return {pairs, stand_ins, member, {kArena, kArena}};
  }
  bool owns(std::int64_t member, const void* data) {
    const char* const at = static_cast<const char*>(data);
    return std::ranges::any_of(std::vector<std::size_t>{0, 1}, [&](std::size_t which) {
      return at >= arena(member, which) && at < arena(member, which) + kArena;
    });
  }
  // Part `part` at an offset of a member: its first byte, all being equal.
  char value(std::int64_t member, std::int64_t offset, std::int64_t part) {
    const char* const at = arena(member, 1) + offset + part * kPart;
    CHECK(std::all_of(at, at + kPart, [&](char byte) { return byte == *at; }));
    return *at;
  }
  void fill(std::int64_t member, std::int64_t offset, std::int64_t part, int value) {
    std::memset(arena(member, 1) + offset + part * kPart, value, kPart);
  }

  std::vector<std::string> arenas;
  std::vector<std::int64_t> present;
};

// Of all members, in any order, as copy engines of several GPUs run them.
template <class CopiesOf>
void run(Group& group, CopiesOf copies_of) {
  struct Asked {
    std::int64_t member;
    PeerCopy copy;
  };
  std::vector<Asked> all;
  for (const std::int64_t member : group.present) {
    for (const PeerCopy& copy : copies_of(group.of(member), member)) {
      all.push_back({member, copy});
    }
  }
  std::mt19937 random(1);
  std::ranges::shuffle(all, random);
  for (const Asked& asked : all) {
    CHECK(group.owns(asked.member, asked.copy.from));
    std::memmove(asked.copy.to, asked.copy.from, static_cast<std::size_t>(asked.copy.bytes));
  }
}

TEST_CASE("after a gather every member has the parts of all, in place or from elsewhere") {
  for (const std::int64_t size : {2, 3, 4, 8}) {
    for (const bool in_place : {false, true}) {
      CAPTURE(size);
      Group group(size);
      const std::int64_t from = in_place ? kOut : kIn;
      for (std::int64_t i = 0; i < size; ++i) { group.fill(i, from, i, static_cast<int>(i + 1)); }
      run(group, [&](const PeerCopies& copies, std::int64_t member) {
        return copies.gather(group.parts(member, from)[static_cast<std::size_t>(member)],
                             group.parts(member, kOut));
      });
      for (std::int64_t member = 0; member < size; ++member) {
        for (std::int64_t part = 0; part < size; ++part) {
          CHECK(group.value(member, kOut, part) == part + 1);
        }
      }
    }
  }
}

TEST_CASE("an exchange gives every member what each other one has for it") {
  for (const std::int64_t size : {2, 3, 4, 8}) {
    CAPTURE(size);
    Group group(size);
    const auto for_member = [](std::int64_t giver, std::int64_t member) {
      return static_cast<char>(10 * giver + member + 1);
    };
    for (std::int64_t giver = 0; giver < size; ++giver) {
      for (std::int64_t member = 0; member < size; ++member) {
        group.fill(giver, kIn, member, for_member(giver, member));
      }
    }
    run(group, [&](const PeerCopies& copies, std::int64_t member) {
      return copies.exchange(group.parts(member, kIn), group.parts(member, kOut));
    });
    for (std::int64_t member = 0; member < size; ++member) {
      for (std::int64_t giver = 0; giver < size; ++giver) {
        CHECK(group.value(member, kOut, giver) ==
              (giver == member ? 0 : for_member(giver, member)));
      }
    }
  }
}

TEST_CASE("a sum's room holds what the next member gives to it") {
  for (const std::int64_t size : {2, 3, 4, 8}) {
    CAPTURE(size);
    Group group(size);
    for (std::int64_t giver = 0; giver < size; ++giver) {
      for (std::int64_t part = 0; part < size; ++part) {
        group.fill(giver, kIn, part, static_cast<int>(10 * giver + part + 1));
      }
    }
    run(group, [&](const PeerCopies& copies, std::int64_t member) {
      return std::vector{
          copies.first_addend(group.parts(member, kIn), group.parts(member, kOut).front())};
    });
    for (std::int64_t member = 0; member < size; ++member) {
      CHECK(group.value(member, kOut, 0) == 10 * ((member + 1) % size) + member + 1);
    }
  }
}

TEST_CASE("a ring shift brings what the member before has") {
  for (const std::int64_t size : {2, 3, 4, 8}) {
    CAPTURE(size);
    Group group(size);
    for (std::int64_t i = 0; i < size; ++i) { group.fill(i, kIn, 0, static_cast<int>(i + 1)); }
    run(group, [&](const PeerCopies& copies, std::int64_t member) {
      return std::vector{
          copies.shift(group.parts(member, kIn).front(), group.parts(member, kOut).front())};
    });
    for (std::int64_t member = 0; member < size; ++member) {
      CHECK(group.value(member, kOut, 0) == (member + size - 1) % size + 1);
    }
  }
}

TEST_CASE("for absent members another writes: every part of those here is filled, as often") {
  for (const std::int64_t here : {2, 3, 4}) {
    CAPTURE(here);
    Group group(8, here);
    for (const std::int64_t i : group.present) {
      group.fill(i, kIn, 0, static_cast<int>(i + 1));
      CHECK(group.of(i).is_absent(7));
      CHECK_FALSE(group.of(i).is_absent(i));
    }
    std::vector<std::int64_t> received(8, 0);
    run(group, [&](const PeerCopies& copies, std::int64_t member) {
      const std::vector<PeerCopy> all =
          copies.gather(group.parts(member, kIn).front(), group.parts(member, kOut));
      for (const std::int64_t other : group.present) {
        received[static_cast<std::size_t>(other)] += std::ranges::count_if(
            all, [&](const PeerCopy& copy) { return group.owns(other, copy.to); });
      }
      return all;
    });
    for (const std::int64_t member : group.present) {
      CHECK(received[static_cast<std::size_t>(member)] == 8);
      for (std::int64_t part = 0; part < 8; ++part) { CHECK(group.value(member, kOut, part) != 0); }
    }
  }
}

TEST_CASE("an address outside a member's arenas is refused") {
  Group group(2);
  char elsewhere = 0;
  CHECK_THROWS_AS(group.of(0).at(1, &elsewhere), std::logic_error);
}

}  // namespace
}  // namespace shardplan
