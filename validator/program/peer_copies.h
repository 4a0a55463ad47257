// Where the copies of a collective go, of a member of a group whose members address each other's
// memory (cuda/peers.h runs them).
//
// A member writes into the others' memory and never reads it by a copy. In one process CUDA's
// driver has the copy engine of the GPU that is read do that, in the order in which the hosts of
// all members asked: what one asks for early, and may not have yet, stands before what another
// waits for, and three members wait for each other for ever (four H200, driver 580.159).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace shardplan {

// Both arenas of a rank as this GPU addresses them, persistent and dynamic.
using ArenaPair = std::array<char*, 2>;

struct Piece {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

struct PeerCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};

// Who stands for the absent members of a group, for one of those that are here (two at least): the
// one before it, so that each stands for another's and all that is written arrives somewhere.
std::int64_t stand_in_for(std::int64_t member, const std::vector<std::int64_t>& here);

class PeerCopies {
 public:
  // By member of the group its arenas, this one's own at `index`, and who stands for it: itself,
  // unless it is absent. own_bytes: of this member's arenas.
  PeerCopies(std::vector<ArenaPair> arenas, std::vector<std::int64_t> stand_ins, std::int64_t index,
             std::array<std::int64_t, 2> own_bytes);

  std::int64_t size() const { return static_cast<std::int64_t>(arenas_.size()); }
  std::int64_t index() const { return index_; }
  bool is_absent(std::int64_t member) const {
    return stand_ins_[static_cast<std::size_t>(member)] != member;
  }
  // The members behind this one, the nearest first.
  std::vector<std::int64_t> others() const;
  // What a member has where this one has `own`. Throws std::logic_error outside the arenas.
  void* at(std::int64_t member, void* own) const;

  // `own` becomes this member's part on all members, on itself too. parts: by member.
  std::vector<PeerCopy> gather(const Piece& own, const std::vector<Piece>& parts) const;
  // given[m] goes to member m, which has it in received[index]; nothing of this member's to itself.
  std::vector<PeerCopy> exchange(const std::vector<Piece>& given,
                                 const std::vector<Piece>& received) const;
  // What this member gives to the sum of the one before it, into that one's `room`.
  PeerCopy first_addend(const std::vector<Piece>& given, const Piece& room) const;
  // To the next member.
  PeerCopy shift(const Piece& in, const Piece& out) const;

 private:
  // Whose part this one writes to a member: its own, and to who stands for an absent one that
  // one's.
  std::size_t part_for(std::int64_t member) const {
    return static_cast<std::size_t>(is_absent(member) ? member : index_);
  }

  std::vector<ArenaPair> arenas_;
  std::vector<std::int64_t> stand_ins_;
  std::int64_t index_;
  std::array<std::int64_t, 2> own_bytes_;
};

}  // namespace shardplan
