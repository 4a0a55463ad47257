// Saved tensors that lie on the host between forward and backward. Sources: TRL 1.16
// models/activation_offloading.py OffloadActivations, NoOpManager; torch/autograd/graph.py
// saved_tensors_hooks of PyTorch 2.11.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// OffloadActivations. With a stream of copies the GPU's tensor stays until five further ones have
// been saved, and what comes back until the next operator that brings tensors back has run.
class HostTensors final : public SavedTensorHooks {
 public:
  // `spares_weights`: weights that operators save as views stay on the GPU.
  HostTensors(Graph& graph, bool has_stream, bool spares_weights)
      : graph_(graph), has_stream_(has_stream), spares_weights_(spares_weights) {}

  std::shared_ptr<void> pack(const Tensor& tensor) override;
  Tensor unpack(const std::shared_ptr<void>& packed) override;
  bool takes_inputs() const override { return true; }

  // Behind a backward pass.
  void clear();
  // The most that has lain on the host at once.
  std::int64_t most_bytes() const { return most_bytes_; }

 private:
  struct Packed {
    HostTensors* owner = nullptr;
    std::int64_t id = 0;
    Tensor kept;  // on the GPU, undefined where it is on the host
    std::int64_t elements = 0;
    DType dtype = DType::kBf16;

    ~Packed();
  };
  struct Leaving {
    std::int64_t id = 0;
    Tensor tensor;
    std::weak_ptr<Storage> storage;  // of the tensor that was saved
  };

  bool stays(const Tensor& tensor) const;
  void let_go(std::int64_t before);
  Tensor bring_back(const Packed& packed);

  Graph& graph_;
  const bool has_stream_;
  const bool spares_weights_;
  std::int64_t last_id_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t most_bytes_ = 0;
  std::deque<Leaving> leaving_;
  // Whose copy is on its way, by id. A storage that is gone keeps its place: no later one takes it.
  std::map<std::weak_ptr<Storage>, std::int64_t, std::owner_less<>> tracked_;
  std::map<std::int64_t, Tensor> back_;  // by id, until a later operator has run
  std::int64_t node_ = 0;                // the last that brought a tensor back
};

// Saved tensors stay as they are while it is the innermost.
class StayingTensors final : public SavedTensorHooks {
 public:
  std::shared_ptr<void> pack(const Tensor& tensor) override;
  Tensor unpack(const std::shared_ptr<void>& packed) override;
};

}  // namespace shardplan::eager
