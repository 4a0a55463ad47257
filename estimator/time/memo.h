// Pieces of prices by the integers that they depend on: bounded memory, two slots for each hash, of
// the pieces that want them the later ones stay. Whether a piece is there changes no answer.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace shardplan {

template <std::size_t kSize>
using PieceKey = std::array<std::int64_t, kSize>;

// Two sizes, counts or names of a plan in one integer of a key.
constexpr std::int64_t packed(std::int64_t high, std::int64_t low) {
  return (high << 32) ^ low;
}

// Without the call that == of arrays makes.
template <std::size_t kSize>
constexpr bool is_same(const PieceKey<kSize>& one, const PieceKey<kSize>& other) {
  std::int64_t difference = 0;
  for (std::size_t i = 0; i < kSize; ++i) { difference |= one[i] ^ other[i]; }
  return difference == 0;
}

template <class Value, std::size_t kSize>
class PieceMemo {
 public:
  struct Piece {
    PieceKey<kSize> key{};
    std::int64_t number = 0;  // of its making, never given twice; 0: there is no piece
    Value value{};
  };

  // slots: a power of two.
  explicit PieceMemo(std::size_t slots) : num_slots_(slots) {}
  PieceMemo(const PieceMemo&) = delete;
  PieceMemo& operator=(const PieceMemo&) = delete;

  // The piece of the key; build(value) writes every field of one that is not there. Stays valid
  // until the next call.
  template <class Build>
  const Piece& find(const PieceKey<kSize>& key, const Build& build) {
    if (is_piece_of(last_, key)) {
      return *last_;
    }
    if (is_piece_of(before_, key)) {
      std::swap(last_, before_);
      return *last_;
    }
    before_ = last_;
    if (slots_.empty()) {  // many tables ask for the pieces of one plan, and few kinds of them
      slots_.resize(num_slots_, nullptr);
    }
    const std::size_t home = hash(key) & (num_slots_ - 1);
    for (const std::size_t at : {home, home ^ 1}) {
      Piece* const known = slots_[at];
      if (is_piece_of(known, key)) {
        last_ = known;
        return *known;
      }
    }
    Piece& piece = place(home);
    piece.number = 0;  // should build throw
    build(piece.value);
    piece.key = key;
    piece.number = ++made_;
    last_ = &piece;
    return piece;
  }

 private:
  static bool is_piece_of(const Piece* piece, const PieceKey<kSize>& key) {
    return piece != nullptr && is_same(piece->key, key) && piece->number > 0;
  }

  // The free one of two neighbouring slots, or the one whose piece is older.
  Piece& place(std::size_t home) {
    Piece*& first = slots_[home];
    Piece*& second = slots_[home ^ 1];
    Piece*& chosen = first == nullptr                                      ? first
                     : second == nullptr || second->number < first->number ? second
                                                                           : first;
    if (chosen == nullptr) {
      chosen = &pieces_.emplace_back();
    }
    return *chosen;
  }

  // Products that wait for no other.
  static std::size_t hash(const PieceKey<kSize>& key) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    std::uint64_t hash = 0;
    std::uint64_t factor = kOdd;
    for (const std::int64_t value : key) {
      const std::uint64_t product = static_cast<std::uint64_t>(value) * factor;
      hash += (product ^ (product >> 32)) * kOdd;
      factor *= kOdd;
    }
    return static_cast<std::size_t>(hash ^ (hash >> 32));
  }

  std::size_t num_slots_ = 0;
  std::vector<Piece*> slots_;  // into pieces_; none before the first question
  std::deque<Piece> pieces_;   // stay where they are
  // Asked for last: neighbouring plans take turns between few pieces.
  Piece* last_ = nullptr;
  Piece* before_ = nullptr;
  std::int64_t made_ = 0;
};

}  // namespace shardplan
