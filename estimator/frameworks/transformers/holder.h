// How a rank holds the model's parameters and their gradients: whole, as one GPU and
// DistributedDataParallel do, or in shards.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::transformers {

// Modules whose parameters may be gathered together: each layer, and the model's ends.
struct ModuleGroup {
  enum class Kind { kEmbedding, kLayer, kFinalNorm, kHead };
  Kind kind = Kind::kLayer;
  std::int64_t layer = 0;
};

struct Shape {
  std::int64_t rows = 0;
  std::int64_t columns = 1;

  std::int64_t elements() const { return rows * columns; }
};

class Holder {
 public:
  explicit Holder(eager::Graph& graph) : graph_(graph) {}
  virtual ~Holder() = default;
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  // A weight comes to the GPU as it was loaded.
  virtual void load(eager::Parameter& parameter, const eager::Label& label, const Shape& shape,
                    DType dtype, bool is_trained);
  // Parameters loaded from now on are of that module.
  virtual void begin_group(const ModuleGroup& /*group*/) {}
  // The model is whole; what wraps it is made.
  virtual void wrap(const std::vector<eager::Parameter*>& /*trained*/) {}

  // Of a parameter, on this rank, as the optimizer has it.
  virtual std::int64_t held_elements(const eager::Parameter& parameter) const {
    return parameter.data.elements;
  }

  // Around a module's forward pass: returns the input and the output that it is to use.
  virtual eager::Tensor enter(const ModuleGroup& /*group*/, const eager::Tensor& input) {
    return input;
  }
  virtual eager::Tensor leave(const ModuleGroup& /*group*/, const eager::Tensor& output) {
    return output;
  }
  virtual void end_forward() {}
  virtual void end_backward() {}

 protected:
  eager::Graph& graph_;
};

// Buckets of DistributedDataParallel: flat tensors from which gradients are summed, beside the
// gradients themselves (torch/nn/parallel/distributed.py, gradient_as_bucket_view False).
class DataParallel final : public Holder {
 public:
  using Holder::Holder;
  void wrap(const std::vector<eager::Parameter*>& trained) override;

 private:
  eager::Tensors buckets_;
};

}  // namespace shardplan::transformers
