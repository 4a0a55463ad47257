// Memory outside the allocator, piece by piece: CUDA context, library handles, NCCL communicators.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// What a row says, without allocating; its name is prefix and name.
struct OutsidePart {
  Component component = Component::kCommunication;
  std::string_view prefix = {};
  std::string_view name = {};
  std::int64_t bytes = 0;
  std::string_view formula = {};
  Origin origin = Origin::kMeasured;
};

// Takes the pieces of one rank: for the rows of an estimate, or for their sum alone.
class OutsideParts {
 public:
  virtual ~OutsideParts() = default;
  virtual void add(const OutsidePart& piece) = 0;
};

class OutsideSum : public OutsideParts {
 public:
  void add(const OutsidePart& piece) override { bytes_ += piece.bytes; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

// What outside memory looks at of a plan besides its groups, schedule and precision: plans that
// agree in it are equal there.
struct SeenByOutside {
  std::int64_t chunks = 1;      // of a rank
  bool layers = false;          // which ones a rank has
  std::int64_t microbatch = 0;  // its sizes as one number
};

}  // namespace shardplan
