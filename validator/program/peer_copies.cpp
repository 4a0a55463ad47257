#include "validator/program/peer_copies.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace shardplan {

std::int64_t stand_in_for(std::int64_t member, const std::vector<std::int64_t>& here) {
  const auto own = std::ranges::find(here, member);
  return own == here.begin() ? here.back() : *std::prev(own);
}

PeerCopies::PeerCopies(std::vector<ArenaPair> arenas, std::vector<std::int64_t> stand_ins,
                       std::int64_t index, std::array<std::int64_t, 2> own_bytes)
    : arenas_(std::move(arenas)),
      stand_ins_(std::move(stand_ins)),
      index_(index),
      own_bytes_(own_bytes) {}

std::vector<std::int64_t> PeerCopies::others() const {
  std::vector<std::int64_t> members;
  for (std::int64_t i = 1; i < size(); ++i) { members.push_back((index_ + i) % size()); }
  return members;
}

void* PeerCopies::at(std::int64_t member, void* own) const {
  const ArenaPair& mine = arenas_[static_cast<std::size_t>(index_)];
  for (std::size_t arena = 0; arena < mine.size(); ++arena) {
    const std::ptrdiff_t offset = static_cast<char*>(own) - mine[arena];
    if (offset >= 0 && offset < own_bytes_[arena]) {
      return arenas_[static_cast<std::size_t>(member)][arena] + offset;
    }
  }
  throw std::logic_error("peers: an address outside the arenas");
}

std::vector<PeerCopy> PeerCopies::gather(const Piece& own, const std::vector<Piece>& parts) const {
  std::vector<PeerCopy> copies;
  for (const std::int64_t member : others()) {
    const Piece& part = parts.at(part_for(member));
    copies.push_back(
        {.to = at(member, part.data), .from = own.data, .bytes = std::min(own.bytes, part.bytes)});
  }
  copies.push_back({.to = parts.at(static_cast<std::size_t>(index_)).data,
                    .from = own.data,
                    .bytes = own.bytes});
  return copies;
}

std::vector<PeerCopy> PeerCopies::exchange(const std::vector<Piece>& given,
                                           const std::vector<Piece>& received) const {
  std::vector<PeerCopy> copies;
  for (const std::int64_t member : others()) {
    const Piece& theirs = given.at(static_cast<std::size_t>(member));
    copies.push_back({.to = at(member, received.at(part_for(member)).data),
                      .from = theirs.data,
                      .bytes = theirs.bytes});
  }
  return copies;
}

PeerCopy PeerCopies::first_addend(const std::vector<Piece>& given, const Piece& room) const {
  const std::int64_t before = others().back();
  return {.to = at(before, room.data),
          .from = given.at(static_cast<std::size_t>(before)).data,
          .bytes = room.bytes};
}

PeerCopy PeerCopies::shift(const Piece& in, const Piece& out) const {
  return {.to = at((index_ + 1) % size(), out.data), .from = in.data, .bytes = in.bytes};
}

}  // namespace shardplan
