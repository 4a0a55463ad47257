// Pieces of prices by the integers that they depend on: bounded memory, one slot for each hash, of
// two pieces that want it the later one stays. Whether a piece is there changes no answer.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

namespace shardplan {

template <std::size_t kSize>
using PieceKey = std::array<std::int64_t, kSize>;

// Two sizes, counts or names of a plan in one integer of a key.
constexpr std::int64_t packed(std::int64_t high, std::int64_t low) {
  return (high << 32) ^ low;
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
  explicit PieceMemo(std::size_t slots) : slots_(slots, -1) {}

  // The piece of the key; build(value) writes every field of one that is not there. Stays valid
  // until the next call.
  template <class Build>
  const Piece& find(const PieceKey<kSize>& key, const Build& build) {
    if (last_ != nullptr && is_same(last_->key, key) && last_->number > 0) {
      return *last_;
    }
    std::int32_t& slot = slots_[hash(key) & (slots_.size() - 1)];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(pieces_.size());
      pieces_.push_back({});
    }
    Piece& piece = pieces_[static_cast<std::size_t>(slot)];
    if (piece.number == 0 || !is_same(piece.key, key)) {
      piece.number = 0;  // should build throw
      build(piece.value);
      piece.key = key;
      piece.number = ++made_;
    }
    last_ = &piece;
    return piece;
  }

 private:
  // Without the call that == of arrays makes.
  static bool is_same(const PieceKey<kSize>& one, const PieceKey<kSize>& other) {
    std::int64_t difference = 0;
    for (std::size_t i = 0; i < kSize; ++i) { difference |= one[i] ^ other[i]; }
    return difference == 0;
  }

  static std::size_t hash(const PieceKey<kSize>& key) {
    std::uint64_t hash = 0;
    for (const std::int64_t value : key) {
      hash =
          (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }

  std::vector<std::int32_t> slots_;  // index into pieces_; -1: empty
  std::deque<Piece> pieces_;         // stay where they are
  Piece* last_ = nullptr;
  std::int64_t made_ = 0;
};

}  // namespace shardplan
