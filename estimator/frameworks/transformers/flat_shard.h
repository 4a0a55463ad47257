// FSDP1 as accelerate sets it up: the parameters of a module in one flat tensor, which is gathered
// around it. Sources: torch/distributed/fsdp (_flat_param.py, _runtime_utils.py) of PyTorch 2.11;
// accelerate 1.15 accelerator.py prepare_model; transformers 5.17 distributed/fsdp.py; peft 0.21
// utils/other.py fsdp_auto_wrap_policy.
#pragma once

#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

class FlatShard final : public huggingface::Holder {
 public:
  FlatShard(eager::Graph& graph, const Job& job, const Plan& plan);

  void begin_group(const huggingface::ModuleGroup& module) override { loading_ = module; }
  void load(eager::Parameter& parameter, const eager::Label& label, const huggingface::Shape& shape,
            DType dtype, bool is_trained) override;
  void wrap(const std::vector<eager::Parameter*>& trained) override;
  std::int64_t held_elements(const eager::Parameter& parameter) const override;
  bool flattens() const override { return true; }
  eager::Tensor enter(const huggingface::ModuleGroup& module, const eager::Tensor& input) override;
  eager::Tensor leave(const huggingface::ModuleGroup& module, const eager::Tensor& output) override;
  eager::Tensor leave_model(const eager::Tensor& loss) override;
  void begin_microbatch(bool syncs) override;
  void end_backward() override;

 private:
  struct Member {
    eager::Parameter* parameter = nullptr;
    std::int64_t offset = 0;
    eager::Tensor gradient;  // until all of the group have theirs
  };
  struct Group {
    std::vector<Member> members;
    std::shared_ptr<eager::Storage> gathered;
    std::int64_t elements = 0;
    DType dtype = DType::kBf16;  // of the shard
    bool is_trained = false;
    std::size_t num_expected = 0;  // gradients of members
    std::size_t num_arrived = 0;
    eager::Tensor gradient;  // flat, until it is reduced
    eager::Tensor reduced;   // this rank's part of it
  };

  Group& root() { return groups_.back(); }
  Group& group_of(const huggingface::ModuleGroup& module, bool is_trained);
  std::int64_t shard_elements(const Group& group) const;
  std::int64_t held_of(const Group& group, const Member& member, std::int64_t rank) const;
  std::int64_t rank_of_most() const;
  void unshard(Group& group);
  void unshard_layer(std::size_t layer);
  void reshard(Group& group);
  void take(Group& group, const eager::Parameter& parameter, eager::Tensor gradient);
  void flatten_gradients(Group& group);
  void reduce(Group& group);

  const Job& job_;
  const bool reshards_;  // behind the forward pass
  const bool offloads_;
  const DType gathered_;
  const std::int64_t ranks_;
  const std::size_t num_layers_;
  std::int64_t rank_ = 0;  // that is played
  // Layers, adapters of each, and the root's: the embedding, the final norm and the head.
  std::vector<Group> groups_;
  // Layers of a tower, adapters of each, and those of its rest: nobody calls them.
  std::vector<Group> tower_;
  huggingface::ModuleGroup loading_;
  bool syncs_ = true;
  eager::Tensors shards_;
};

}  // namespace shardplan::transformers
