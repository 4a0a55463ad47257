// What is written while a trainer's step is played: allocations and frees in the order of time.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "estimator/ledger/allocation.h"

namespace shardplan {

// A tensor on the tape; none once it has been freed.
struct TapeTensor {
  std::int64_t id = 0;  // 0: none
  std::int64_t bytes = 0;
};

class AllocationTape {
 public:
  // No bytes: no tensor.
  TapeTensor make(std::int64_t bytes, AllocationStream stream = AllocationStream::kCompute) {
    if (bytes == 0) {
      return {};
    }
    ++last_id_;
    events_.push_back({.id = last_id_, .bytes = bytes, .stream = stream});
    return {.id = last_id_, .bytes = bytes};
  }
  void free(TapeTensor& tensor) {
    if (tensor.id != 0) {
      events_.push_back({.id = std::exchange(tensor, {}).id, .bytes = 0});
    }
  }
  template <typename... Tensors>
  void free(TapeTensor& first, Tensors&... rest) {
    free(first);
    (free(rest), ...);
  }
  // Frees `old` once its replacement is there.
  void replace(TapeTensor& old, std::int64_t bytes) {
    const TapeTensor next = make(bytes);
    free(old);
    old = next;
  }

  // The tensor that a kernel writes over one it uses up, where both have one size; else a new one.
  TapeTensor write_over(TapeTensor& used_up, std::int64_t bytes) {
    if (used_up.bytes == bytes) {
      return std::exchange(used_up, {});
    }
    const TapeTensor written = make(bytes);
    free(used_up);
    return written;
  }

  std::vector<AllocationEvent> take_events() { return std::move(events_); }
  std::int64_t num_events() const { return std::ssize(events_); }
  std::int64_t last_id() const { return last_id_; }  // tensors are numbered from 1 on

 private:
  std::vector<AllocationEvent> events_;
  std::int64_t last_id_ = 0;
};

// A tape with the workspaces of matrix products.
class ProductTape : public AllocationTape {
 public:
  // cuBLAS makes the workspace of a thread in its first product, once that has its output, and
  // keeps it (getCurrentCUDABlasHandle and getCUDABlasLtWorkspace of
  // ATen/cuda/CublasHandlePool.cpp). Autograd runs backward, and what it replays, in a thread of
  // its own.
  explicit ProductTape(std::int64_t workspace_bytes)
      : workspaces_{workspace_bytes, workspace_bytes} {}
  void enter_thread(bool is_autograd) { thread_ = is_autograd ? 1 : 0; }
  // The output of a matrix product.
  TapeTensor make_product(std::int64_t bytes) {
    const TapeTensor output = make(bytes);
    make_workspace();
    return output;
  }

  // That of the running thread; nothing where it has its own.
  void make_workspace() { make(std::exchange(workspaces_[thread_], 0)); }
  // Another one, of cuBLASLt, in which products with a bias run (ATen/cuda/CUDABlas.cpp
  // gemm_and_bias): 1 MiB of either thread, in the allocator's history of PyTorch 2.11 on H200.
  void make_bias_workspace() { make(std::exchange(bias_workspaces_[thread_], 0)); }

 private:
  std::array<std::int64_t, 2> workspaces_;
  std::array<std::int64_t, 2> bias_workspaces_ = {1 << 20, 1 << 20};
  std::size_t thread_ = 0;
};

}  // namespace shardplan
