// How a rank holds the model's parameters and their gradients: whole, as one GPU and
// DistributedDataParallel do, or in shards.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::huggingface {

// Modules whose parameters may be gathered together: each layer, the experts of one that other
// ranks have others of, and the model's ends; of a tower, which is never called, each layer and the
// rest.
struct ModuleGroup {
  enum class Kind { kEmbedding, kLayer, kExperts, kFinalNorm, kHead, kTowerLayer, kTowerRest };
  Kind kind = Kind::kLayer;
  std::int64_t layer = 0;

  bool is_of_tower() const { return kind == Kind::kTowerLayer || kind == Kind::kTowerRest; }
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
  virtual void wrap(const std::vector<eager::Parameter*>& /*trained*/) { keep_parts(); }

  // Of a parameter, on this rank, as the optimizer has it.
  virtual std::int64_t held_elements(const eager::Parameter& parameter) const {
    return parameter.data.elements;
  }

  // Optimizers have parts of flat tensors.
  virtual bool flattens() const { return false; }
  // Outside its own forward pass an adapter's matrix has the type in which the optimizer has it.
  virtual bool shows_shards() const { return flattens(); }

  // Around a module's forward pass: returns the input and the output that it is to use.
  virtual eager::Tensor enter(const ModuleGroup& /*group*/, const eager::Tensor& input) {
    return input;
  }
  virtual eager::Tensor leave(const ModuleGroup& /*group*/, const eager::Tensor& output) {
    return output;
  }
  // Both stand within a layer's checkpoint, and run with it again.
  virtual bool is_within_checkpoints() const { return false; }
  virtual eager::Tensor leave_model(const eager::Tensor& loss) { return loss; }
  // `syncs`: gradients of this microbatch are reduced; those before it only add up.
  virtual void begin_microbatch(bool /*syncs*/) {}
  virtual void end_forward() {}
  // The outputs of the forward pass are copied before they are returned.
  virtual bool copies_outputs() const { return false; }
  virtual void end_backward() {}

 protected:
  // A gradient has been accumulated.
  virtual void took(eager::Parameter& /*parameter*/) {}
  // Of each tensor of which this rank has a part, the part is made beside the whole, which goes.
  void keep_parts();

  eager::Graph& graph_;

 private:
  struct Whole {
    eager::Parameter* parameter = nullptr;
    eager::Tensor data;
  };
  std::vector<Whole> wholes_;
};

// Buckets of DistributedDataParallel: flat tensors from which gradients are summed, beside the
// gradients themselves (gradient_as_bucket_view False). Unless it looks for unused parameters, the
// first forward pass behind a reduction makes them anew in the order in which gradients came.
// NCCL's process group holds what it reduces until a collective is begun after its watchdog, which
// looks every 0.1 s, has seen the reduction end. The next collective is the sum of the tokens of
// the second step, by when the old buckets are free: the first step of an optimizer, which loads
// its kernels, takes longer than that but in models of a few layers of a thousand columns. Sources:
// torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp, ProcessGroupNCCL.cpp
// (shelvesToUnstash_) of PyTorch 2.11; transformers trainer.py get_batch_samples; the allocator's
// history and peaks of whole trainings on two H200.
class DataParallel final : public Holder {
 public:
  DataParallel(eager::Graph& graph, bool finds_unused, bool are_views);

  void wrap(const std::vector<eager::Parameter*>& trained) override;
  void begin_microbatch(bool syncs) override;
  void end_backward() override;
  bool copies_outputs() const override { return finds_unused_; }  // _DDPSink

 protected:
  void took(eager::Parameter& parameter) override;

 private:
  void make_buckets();

  const bool finds_unused_;
  const bool are_views_;  // gradients are views of the buckets
  std::vector<eager::Parameter*> trained_;
  eager::Tensors buckets_;
  bool syncs_ = true;
  bool has_reduced_ = false;
  bool has_rebuilt_ = false;
};

}  // namespace shardplan::huggingface
