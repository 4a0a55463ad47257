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

  void begin_group(const huggingface::ModuleGroup& module) override { loading_ = module; }
  void load(eager::Parameter& parameter, const eager::Label& label, const huggingface::Shape& shape,
            DType dtype, bool is_trained) override;
  std::int64_t held_elements(const eager::Parameter& parameter) const override {
    return shard_elements(parameter);
  }
  eager::Tensor enter(const huggingface::ModuleGroup& module, const eager::Tensor& input) override;
  eager::Tensor leave(const huggingface::ModuleGroup& module, const eager::Tensor& output) override;
  bool is_within_checkpoints() const override { return true; }
  eager::Tensor leave_model(const eager::Tensor& loss) override;
  void begin_microbatch(bool syncs) override { syncs_ = syncs; }
  void end_forward() override { held_output_ = {}; }
  void end_backward() override;

 private:
  struct Member {
    eager::Parameter* parameter = nullptr;
    eager::Tensor gradient;  // whole, until it is reduced
  };
  struct Group {
    std::vector<Member> members;
    bool reshards = true;    // after the forward pass
    eager::Tensor gathered;  // the flat output of the all-gather, until it is copied out
  };

  std::size_t index_of(const huggingface::ModuleGroup& module) const;
  bool is_upcast(bool is_trained) const;
  std::int64_t shard_elements(const eager::Parameter& parameter) const;
  bool is_unsharded(const Group& group) const;
  eager::Tensors gather_inputs(const Group& group);
  void gather(Group& group);
  void unshard(Group& group, bool holds_output);
  void reshard(Group& group);
  eager::Tensor hook_backward(std::size_t index, const eager::Tensor& output);
  void before_backward(std::size_t index);
  void take(Group& group, const eager::Parameter& parameter, eager::Tensor gradient);
  void reduce(Group& group);

  const Job& job_;
  std::int64_t ranks_ = 1;
  std::int64_t num_layers_ = 0;
  DType gathered_ = DType::kBf16;  // and reduced
  bool offloads_ = false;          // shards, reduced gradients and the optimizer are the host's
  bool is_tied_ = false;
  bool has_root_ = false;      // both ends are the root's group
  std::vector<Group> groups_;  // the embedding's where it is untied, the layers', the tail's
  huggingface::ModuleGroup loading_;
  bool syncs_ = true;
  eager::Tensor held_output_;      // of the last gather of a forward pass
  eager::Tensor reduction_input_;  // until the next one
  std::vector<eager::Tensor> shards_;
};

}  // namespace shardplan::transformers
