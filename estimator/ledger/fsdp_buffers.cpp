#include "estimator/ledger/fsdp_buffers.h"

namespace shardplan {

std::int64_t FsdpBuffers::parameter_bytes(BucketRange range) const {
  std::int64_t bytes = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { bytes += buckets[i].parameter_bytes; }
  return bytes;
}

std::int64_t FsdpBuffers::gradient_bytes(BucketRange range) const {
  std::int64_t bytes = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { bytes += buckets[i].gradient_bytes; }
  return bytes;
}

std::int64_t FsdpBuffers::forward_bytes(std::size_t unit) const {
  return empty() ? 0 : parameter_bytes(units[unit].gathered_forward);
}

std::int64_t FsdpBuffers::replay_bytes(std::size_t unit) const {
  return empty() ? 0
                 : parameter_bytes(units[unit].gathered_replay) +
                       gradient_bytes(units[unit].gradients_replay) + units[unit].held_bytes;
}

std::int64_t FsdpBuffers::backward_bytes(std::size_t unit) const {
  return empty() ? 0
                 : parameter_bytes(units[unit].gathered_backward) +
                       gradient_bytes(units[unit].gradients_backward) + units[unit].held_bytes;
}

}  // namespace shardplan
