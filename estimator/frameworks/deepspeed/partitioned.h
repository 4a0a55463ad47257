// DeepSpeed's ZeRO-3: parameters gathered around modules and ahead of them, one bucket that
// gradients are reduced from, the optimizer's step sub-group by sub-group (runtime/zero/stage3.py,
// parameter_offload.py, partition_parameters.py, partitioned_param_coordinator.py). With
// offload_optimizer sub-groups are stepped on the host, where gradients accumulate; with
// offload_param this rank's parts lie there and come for every gather.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/frameworks/deepspeed/zero.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// Tensors of a layer that are divided, small ones stay on every rank; and those of them that share
// a gather, which takes tensors until it exceeds the prefetch bucket.
struct DividedTensors {
  double all = 0;
  double gathered_together = 0;
  std::int64_t elements_together = 0;
};
DividedTensors zero3_divided_tensors(const Job& job);

class PartitionedZero final : public DeepspeedZero {
 public:
  PartitionedZero(const Job& job, const Plan& plan, eager::Tape& tape,
                  std::vector<ZeroTensor> tensors);

  void build();
  void begin_microbatch(bool is_last) override;
  void end_backward() override;
  void step() override;
  void before_forward(const ModuleCall& call) override;
  void read_external(const ModuleCall& call) override;
  void after_forward(const ModuleCall& call) override { release(call); }
  void before_backward(const ModuleCall& call) override;
  void after_backward(const ModuleCall& call) override;
  void take(std::int64_t parameter, eager::Tensor gradient) override;

 private:
  enum class Status { kAway, kInFlight, kHere };
  struct Parameter {
    ZeroTensor whole;
    std::int64_t part = 0;  // elements on every rank
    bool persists = false;
    Status status = Status::kAway;
    std::size_t gather = 0;             // the one that it is in flight with
    std::int64_t fetched_for = 0;       // the last call that it has been taken off the queue for
    std::vector<std::int64_t> users{};  // modules that run and use it
    eager::Tensor gradient{};

    std::int64_t part_bytes() const { return bytes_of(whole.dtype) * part; }
  };
  // Parameters gathered at once lie in flat tensors until each has been waited for.
  struct Gather {
    std::vector<std::int64_t> parameters;
    std::vector<TapeTensor> flat;  // one of each type
    TapeTensor own_part = {};      // from the host
    std::int64_t num_awaited = 0;
    bool is_complete = false;
  };
  // A module that runs backward, and frozen parameters that have been brought for layers that run
  // again within it.
  struct ActiveBackward {
    ModuleCall call;
    std::vector<std::int64_t> recomputed;
  };
  struct QueuedParameter {
    std::int64_t parameter = 0;
    std::int64_t call = 0;
  };

  Parameter& at(std::int64_t parameter) { return parameters_[static_cast<std::size_t>(parameter)]; }
  bool is_unknown(const ModuleCall& call) const {
    return call.is_external && !known_externals_.contains(call.module);
  }
  bool has_trace() const { return num_microbatches_ > 1; }
  void fill(const Parameter& parameter, std::int64_t bytes, AllocationStream stream);
  void gather(std::span<const std::int64_t> parameters);
  TapeTensor bring_part(const Parameter& parameter);
  void gather_flat(Gather& gather, DType dtype);
  void await(std::int64_t parameter);
  void prefetch();
  void fetch(const ModuleCall& call);
  void use(std::int64_t parameter, std::int64_t module);
  void take_off_queue(std::span<const std::int64_t> parameters);
  bool is_needed_soon(std::int64_t parameter) const;
  void release(const ModuleCall& call);
  void drop(Parameter& parameter);

  // partitioned_gradients.cpp
  void reduce_bucket();
  void move_to_host(const Parameter& parameter);
  void update(std::size_t sub_group);
  void gather_persistent();

  eager::Tape& tape_;
  std::int64_t half_ = 2;  // bytes of an element
  std::int64_t ranks_ = 1;
  std::vector<std::int64_t> sub_groups_;
  bool offloads_optimizer_ = false;
  bool offloads_parameters_ = false;
  std::size_t num_on_gpu_ = 0;  // sub-groups, the first ones
  std::int64_t bucket_elements_ = 0;
  std::int64_t prefetch_elements_ = 0;
  std::int64_t max_live_elements_ = 0;
  AllocationStream gather_stream_ = AllocationStream::kCompute;
  AllocationStream reduce_stream_ = AllocationStream::kCompute;
  std::vector<Parameter> parameters_;
  std::vector<Gather> gathers_;

  std::vector<std::span<const std::int64_t>> trace_;  // parameters of one microbatch's calls
  std::deque<QueuedParameter> queue_;                 // not yet asked for
  std::int64_t num_microbatches_ = 0;
  std::int64_t num_of_step_ = 0;  // microbatches begun
  bool is_boundary_ = false;
  std::int64_t call_ = 0;
  std::int64_t available_elements_ = 0;
  std::vector<ActiveBackward> active_backward_;
  std::vector<std::int64_t> bucket_;
  std::int64_t bucketed_elements_ = 0;
  bool has_moments_ = false;
  Moments moments_;
  std::unordered_set<std::int64_t> known_externals_;  // modules that have read theirs
  TapeTensor leaving_;                                // the gradient that went to the host last
  std::vector<TapeTensor> norms_;                     // of gradients that have gone there
};

}  // namespace shardplan::deepspeed
