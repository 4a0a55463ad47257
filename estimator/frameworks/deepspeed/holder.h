// How a rank of DeepSpeed holds the parameters and gradients of a model that is played operator by
// operator: hooks of its modules and of its gradients around a ZeRO optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "estimator/frameworks/deepspeed/zero.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

class ZeroHolder final : public huggingface::Holder, public eager::ModuleHooks {
 public:
  // `rank` of the data-parallel ones.
  ZeroHolder(eager::Graph& graph, const Job& job, const Plan& plan, std::int64_t rank);

  void load(eager::Parameter& parameter, const eager::Label& label, const huggingface::Shape& shape,
            DType dtype, bool is_trained) override;
  void wrap(const std::vector<eager::Parameter*>& trained) override;
  // Trained parameters that go to the host, to be flattened there.
  std::int64_t num_moved() const { return num_moved_; }
  void begin_microbatch(bool syncs) override;
  void end_backward() override { zero_->end_backward(); }
  void step() { zero_->step(); }

  eager::Tensor before_call(const eager::Module& module, const eager::Tensor& input) override;
  eager::Tensor behind_call(const eager::Module& module, const eager::Tensor& output) override;
  void read(const eager::Module& module) override;
  bool passes_over_leaves() const override { return divides_parameters(); }

 private:
  // A module as ZeRO sees it.
  struct Hooked {
    ModuleCall call;
    std::vector<std::int64_t> places;
    bool is_leaf = false;
  };

  bool divides_parameters() const { return plan_.zero == 3; }
  void take(const eager::Parameter& parameter, eager::Tensor gradient);
  const Hooked& hooked(const eager::Module& module);
  void end_call(const Hooked& module);

  const Job& job_;
  const Plan& plan_;
  const std::int64_t rank_;
  std::unique_ptr<DeepspeedZero> zero_;
  std::vector<eager::Parameter*> loaded_;
  std::int64_t num_moved_ = 0;
  std::unordered_map<const eager::Parameter*, std::int64_t> place_of_;
  std::map<std::pair<const void*, std::string_view>, Hooked> modules_;
  // Gradients of a leaf's parameters wait for the end of its backward pass.
  std::unordered_set<std::int64_t> of_leaves_;
  std::vector<std::pair<std::int64_t, eager::Tensor>> waiting_;
};

}  // namespace shardplan::deepspeed
