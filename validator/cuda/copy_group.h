// GPUs of this process that copy from each other (peers.h), for the benchmarks of
// `calibrate --time`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "validator/cuda/peers.h"

namespace shardplan {

class CopyGroup {
 public:
  // Whether the first `size` GPUs can be such a group.
  static bool can_be_of(std::int64_t size);

  // Of the first `size` GPUs, each with room for so many bytes, of random values. Every member has
  // its memory, its words are zero and all of it can be reached before this returns. Throws
  // CudaError.
  CopyGroup(std::int64_t size, std::int64_t bytes);
  // No member may still run.
  ~CopyGroup();
  CopyGroup(const CopyGroup&) = delete;
  CopyGroup& operator=(const CopyGroup&) = delete;

  // body(rank) on a thread for each member, its GPU the current one. When one throws, no member
  // waits for it any more.
  void on_members(const std::function<void(std::int64_t rank)>& body);

  CudaPeers& peers(std::int64_t rank);
  char* room(std::int64_t rank);

 private:
  struct Member;
  void release() const;

  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace shardplan
