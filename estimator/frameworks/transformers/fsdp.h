// FSDP2 as accelerate sets it up: groups of parameters that are gathered around modules, and whose
// gradients are reduced behind them. Sources: torch/distributed/fsdp/_fully_shard
// (_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py) of PyTorch 2.11; accelerate 1.15
// utils/fsdp_utils.py fsdp2_prepare_model, and its releases since 1.10.
#pragma once

#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

class FullyShard final : public huggingface::Holder {
 public:
  FullyShard(eager::Graph& graph, const Job& job, const Plan& plan);

  void begin_group(const huggingface::ModuleGroup& module) override;
  void load(eager::Parameter& parameter, const eager::Label& label, const huggingface::Shape& shape,
            DType dtype, bool is_trained) override;
  std::int64_t held_elements(const eager::Parameter& parameter) const override {
    return shard_elements(parameter);
  }
  eager::Tensor enter(const huggingface::ModuleGroup& module, const eager::Tensor& input) override;
  eager::Tensor leave(const huggingface::ModuleGroup& module, const eager::Tensor& output) override;
  eager::Tensor leave_model(const eager::Tensor& loss) override;
  void begin_microbatch(bool syncs) override { syncs_ = syncs; }
  void end_forward() override { held_output_ = {}; }
  void end_backward() override;

 private:
  struct WholeGradient {
    const eager::Parameter* parameter = nullptr;
    eager::Tensor gradient;
  };
  struct Group {
    std::vector<eager::Parameter*> parameters;
    bool reshards = true;    // after the forward pass
    eager::Tensor gathered;  // the flat output of the all-gather, until it is copied out
    std::vector<WholeGradient> gradients;  // in the order in which they came
  };

  std::size_t index_of(const huggingface::ModuleGroup& module) const;
  std::int64_t shard_elements(const eager::Parameter& parameter) const;
  bool is_unsharded(const Group& group) const;
  void gather(Group& group);
  void unshard(Group& group, bool holds_output);
  void reshard(Group& group);
  eager::Tensor hook_backward(std::size_t index, const eager::Tensor& output);
  void before_backward(std::size_t index);
  static void take(Group& group, const eager::Parameter& parameter, eager::Tensor gradient);
  void reduce(Group& group);

  const Job& job_;
  std::int64_t ranks_ = 1;
  std::int64_t num_layers_ = 0;
  bool is_tied_ = false;
  bool syncs_ = true;
  bool has_root_ = false;      // both ends are the root's group
  std::vector<Group> groups_;  // the embedding's where it is untied, the layers', the tail's
  std::size_t loading_ = 0;
  eager::Tensor held_output_;      // of the last gather of a forward pass
  eager::Tensor reduction_input_;  // until the next one
  std::vector<eager::Tensor> shards_;
};

}  // namespace shardplan::transformers
