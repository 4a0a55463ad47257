// DeepSpeed's ZeRO-1 and 2 (runtime/zero/stage_1_and_2.py): one flat tensor of all parameters,
// buckets that gradients are reduced from, one tensor of the gradients that a rank keeps, and the
// optimizer's step on this rank's part of them. With offload_optimizer that part is stepped on the
// host: a gradient goes there as soon as its bucket has been reduced.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/frameworks/deepspeed/zero.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// _has_inf_or_nan of one gradient, where it copies.
void check_overflow_by_copies(eager::Tape& tape, std::int64_t elements, AllocationStream stream);

class FlatZero final : public DeepspeedZero {
 public:
  FlatZero(const Job& job, const Plan& plan, std::int64_t rank, eager::Tape& tape,
           const std::vector<ZeroTensor>& tensors);

  // The trained tensors one by one, the flat one, this rank's part in fp32.
  void build();
  bool flattens_on_gpu() const { return flattens_on_gpu_; }
  // Makes the flat tensor and this rank's part; `drop_tensors` frees the tensors that it was copied
  // from.
  void flatten(const std::function<void()>& drop_tensors);
  void before_backward(const ModuleCall& call) override;
  void take(std::int64_t parameter, eager::Tensor gradient) override;
  void begin_microbatch(bool is_last) override { is_boundary_ = is_last; }
  void end_backward() override;
  void step() override;

 private:
  struct Bucket {
    std::vector<std::int64_t> parameters;
    std::int64_t elements = 0;
  };
  const FlatRange& range_of(std::int64_t parameter) const;
  bool is_kept(std::int64_t parameter) const;
  void set_up_buckets();
  void add_to_bucket(std::int64_t parameter);
  void average();
  void reduce_bucket();
  void move_to_host(std::int64_t parameter);
  std::int64_t part_of(std::int64_t parameter) const;
  void take_norms();

  eager::Tape& tape_;
  std::int64_t half_ = 2;         // bytes of an element
  bool keeps_gradients_ = false;  // ZeRO-1
  bool overlaps_ = false;
  AllocationStream reduce_stream_ = AllocationStream::kCompute;
  bool flattens_on_gpu_ = false;
  bool makes_buckets_first_ = false;
  bool copies_for_check_ = false;
  bool offloads_ = false;
  bool checks_offloaded_by_copies_ = false;  // in every precision
  std::int64_t bucket_elements_ = 0;
  std::vector<FlatRange> ranges_;   // by trained parameter
  std::int64_t flat_elements_ = 0;  // aligned to ranks
  std::int64_t share_ = 0;
  std::int64_t rank_ = 0;
  std::vector<std::int64_t> parts_;  // of tensors in this rank's share, elements
  std::int64_t kept_elements_ = 0;   // of whole tensors that the share reaches into

  bool is_boundary_ = false;
  bool has_buckets_ = false;
  bool has_moments_ = false;
  Moments moments_;
  TapeTensor buffers_[2];
  Bucket bucket_;
  std::vector<eager::Tensor> gradients_;  // .grad, by parameter
  TapeTensor partition_;                  // grads_in_partition
  TapeTensor accumulated_;                // of the microbatches before
  std::vector<TapeTensor> norms_;         // of gradients that have gone to the host
};

}  // namespace shardplan::deepspeed
