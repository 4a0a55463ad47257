// Buckets of parameters and gradients that a chunk's units gather and reduce as a microbatch goes
// through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardplan {

// Parameters that are gathered and reduced together: of a layer its experts and the rest.
struct FsdpBucket {
  std::int64_t elements = 0;  // with padding; limits count them whether or not they are divided
  std::int64_t parameter_bytes = 0;  // gathered; 0: never
  std::int64_t gradient_bytes = 0;   // before the reduce-scatter; 0: accumulated in place
};

struct BucketRange {
  std::size_t first = 0;
  std::size_t last = 0;  // behind the last one
};

// Buckets alive while a unit runs.
struct FsdpUnit {
  BucketRange gathered_forward;
  BucketRange gathered_replay;
  BucketRange gathered_backward;
  BucketRange gradients_replay;  // those in the queue
  BucketRange gradients_backward;
  std::int64_t held_bytes = 0;  // gradients of the ends, or all, that wait for the end
};

struct FsdpBuffers {
  std::vector<FsdpBucket> buckets;  // in model order
  std::vector<FsdpUnit> units;      // of the chunk, equal ones one by one; none: no FSDP

  bool empty() const { return units.empty(); }
  std::int64_t parameter_bytes(BucketRange range) const;
  std::int64_t gradient_bytes(BucketRange range) const;
  // In all, while that unit runs; 0 without units.
  std::int64_t forward_bytes(std::size_t unit) const;
  std::int64_t replay_bytes(std::size_t unit) const;
  std::int64_t backward_bytes(std::size_t unit) const;
};

}  // namespace shardplan
