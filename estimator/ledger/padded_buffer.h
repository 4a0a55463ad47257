// The length of one contiguous buffer of Megatron-LM (core_v0.16.1 core/distributed/
// param_and_grad_buffer.py).
#pragma once

#include <cstdint>
#include <numeric>

#include "estimator/plan/units.h"

namespace shardplan {

// Parameters in reverse order, each at a multiple of 64 elements, buckets of at least bucket_size
// elements padded at their end to a multiple of lcm(S, 128).
class PaddedBuffer {
 public:
  PaddedBuffer(std::int64_t shard, std::int64_t bucket_size)
      : end_multiple_(std::lcm(shard, std::int64_t{128})), bucket_size_(bucket_size) {}

  void add(std::int64_t elements) {
    constexpr std::int64_t kStartMultiple = 64;
    end_ = round_up(end_, kStartMultiple) + elements;
    elements_ += elements;
    if (bucket_size_ > 0 && end_ - bucket_start_ >= bucket_size_) {
      close_bucket();
    }
  }
  // From now on nothing is added.
  std::int64_t close() {
    close_bucket();
    return end_;
  }
  std::int64_t padding() const { return end_ - elements_; }

 private:
  void close_bucket() {
    end_ = round_up(end_, end_multiple_);
    bucket_start_ = end_;
  }

  std::int64_t end_multiple_;
  std::int64_t bucket_size_;
  std::int64_t elements_ = 0;
  std::int64_t end_ = 0;
  std::int64_t bucket_start_ = 0;
};

}  // namespace shardplan
