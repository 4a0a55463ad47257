// FSDP2 as accelerate and LLaMA-Factory's version 1 set it up: groups of parameters that are
// gathered around modules, and whose gradients are reduced behind them. Sources:
// torch/distributed/fsdp/_fully_shard (_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py)
// of PyTorch 2.11; accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model, and its releases since
// 1.10; LLaMA-Factory ff6d4d1 src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

class FullyShard final : public huggingface::Holder, public eager::ModuleHooks {
 public:
  FullyShard(eager::Graph& graph, const Job& job, const Plan& plan);

  void begin_group(const huggingface::ModuleGroup& module) override { loading_ = module; }
  void wrap(const std::vector<eager::Parameter*>& trained) override;
  bool shows_shards() const override { return shards_adapters_; }
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

  // Around a matrix of an adapter that is a group of its own.
  eager::Tensor before_call(const eager::Module& module, const eager::Tensor& input) override;
  eager::Tensor behind_call(const eager::Module& module, const eager::Tensor& output) override;
  bool comes_first() const override { return true; }

 private:
  struct Member {
    eager::Parameter* parameter = nullptr;
    eager::Tensor gradient;  // whole, until it is reduced
    bool is_of_tower = false;
  };
  struct Group {
    std::vector<Member> members;
    eager::Tensors whole;     // as they were loaded, until they are sharded
    bool reshards = true;     // after the forward pass
    eager::Tensor gathered;   // the flat output of the all-gather, until it is copied out
    Group* before = nullptr;  // whose forward pass ends before this one's
    std::int64_t layer = 0;   // of an adapter
    std::int64_t ranks = 1;   // over which it is sharded
  };

  Group& tail() { return groups_.back(); }
  Group& group_of(const huggingface::ModuleGroup& module);
  Group& group_to_load(const eager::Parameter& parameter);
  Group* alone(const eager::Module& module);
  void order_groups();
  void keep_shard(const Member& member);
  void shard_whole(Group& group);
  bool is_upcast(bool is_trained) const;
  std::int64_t ranks_of(const eager::Parameter& parameter) const;
  std::int64_t shard_elements(const eager::Parameter& parameter) const;
  bool is_unsharded(const Group& group) const;
  eager::Tensors gather_inputs(const Group& group);
  void gather(Group& group);
  void unshard(Group& group, bool holds_output);
  void reshard(Group& group);
  eager::Tensor hook_backward(Group& group, const eager::Tensor& output);
  eager::Tensor hook_reduction(Group& group, const eager::Tensor& input);
  void before_backward(Group& group);
  void take(Group& group, const eager::Parameter& parameter, eager::Tensor gradient);
  void reduce(Group& group);
  void finish(Group& group);

  const Job& job_;
  std::int64_t ranks_ = 1;
  std::int64_t expert_ranks_ = 1;  // that have the same experts
  std::int64_t num_layers_ = 0;
  DType gathered_ = DType::kBf16;
  DType reduced_ = DType::kBf16;
  bool offloads_ = false;  // shards, reduced gradients and the optimizer are the host's
  bool is_tied_ = false;
  bool has_root_ = false;     // the last group is the root's, which is entered with the model
  bool holds_table_ = false;  // with both ends
  bool reshards_layers_ = true;
  bool shards_adapters_ = false;  // matrices of adapters by themselves
  bool sums_replicas_ = false;    // reduced shards, which stay until the backward pass ends
  std::vector<Group> groups_;     // the embedding's where it is untied, the layers', the tail's
  std::deque<Group> adapters_;
  std::vector<Group> experts_;  // of layers whose experts are dealt to ranks
  Group tower_layers_;          // of all of them, which nobody calls
  Group tower_rest_;            // the root's, where it has nothing else
  std::map<const eager::Parameter*, Group*> alone_;
  huggingface::ModuleGroup loading_;
  bool syncs_ = true;
  eager::Tensor held_output_;      // of the last gather of a forward pass
  eager::Tensor reduction_input_;  // until the next one
  eager::Tensors summed_;          // over replicas, until the backward pass ends
  std::vector<eager::Tensor> shards_;
};

}  // namespace shardplan::transformers
