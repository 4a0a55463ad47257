// Memory outside the allocator, piece by piece: CUDA context, library handles, NCCL communicators.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// What a row says, without allocating; its name is prefix and name.
struct OutsidePiece {
  Component component = Component::kCommunication;
  std::string_view prefix = {};
  std::string_view name = {};
  std::int64_t bytes = 0;
  std::string_view formula = {};
  Origin origin = Origin::kMeasured;
};

// Takes the pieces of one rank: for the rows of an estimate, or for their sum alone.
class OutsidePieces {
 public:
  virtual ~OutsidePieces() = default;
  virtual void add(const OutsidePiece& piece) = 0;
};

class OutsideSum : public OutsidePieces {
 public:
  void add(const OutsidePiece& piece) override { bytes_ += piece.bytes; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

}  // namespace shardplan
