// Buckets of Megatron-FSDP as tensors of a timeline.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/fsdp_buffers.h"
#include "estimator/ledger/timeline_writer.h"

namespace shardplan {

// Of one microbatch's forward or backward in a chunk, from its first unit to `leave`. Parameters
// are gathered on a stream of their own. Nothing where the chunk has no FSDP.
class FsdpTensors {
 public:
  FsdpTensors(TimelineWriter& writer, const FsdpBuffers& buffers);

  // Frees what is not alive while the unit runs, then allocates what is.
  void enter_forward(std::size_t unit);
  void enter_replay(std::size_t unit);
  void enter_backward(std::size_t unit);
  // Frees all.
  void leave();

 private:
  void enter(BucketRange gathered, BucketRange gradients, std::int64_t held_bytes);

  TimelineWriter& writer_;
  const FsdpBuffers& buffers_;
  std::vector<std::int64_t> parameters_;  // ids, by bucket
  std::vector<std::int64_t> gradients_;
  std::int64_t held_ = 0;
};

}  // namespace shardplan
