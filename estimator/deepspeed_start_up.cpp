#include "estimator/deepspeed_start_up.h"

#include "estimator/allocation_tape.h"
#include "estimator/block_rows.h"
#include "estimator/estimate.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kFp32 = 4;

struct StartUp {
  std::int64_t flat = 0;             // bytes of the whole model
  std::int64_t part = 0;             // of this rank's part
  std::int64_t part_fp32 = 0;        // and in fp32
  bool flattens_on_the_gpu = false;  // available_memory >= flat_buffer_bytes
};

StartUp start_up(const Job& job, const Plan& plan, std::int64_t parameters) {
  const std::int64_t share = div_ceil(parameters, dense_shard_size(job, plan));
  const std::int64_t half = bytes_of(activation_dtype(plan.precision));
  const std::int64_t free =
      device_capacity_bytes(job.cluster) - job.cluster.gpu.context_bytes.value_or(0);
  return {.flat = half * parameters,
          .part = half * share,
          .part_fp32 = kFp32 * share,
          .flattens_on_the_gpu = 2 * half * parameters <= free};
}

}  // namespace

std::vector<AllocationEvent> deepspeed_start_up(const Job& job, const Plan& plan,
                                                std::int64_t parameters,
                                                const std::vector<std::int64_t>& tensors) {
  const StartUp sizes = start_up(job, plan, parameters);
  AllocationTape tape;
  std::vector<TapeTensor> model;
  if (sizes.flattens_on_the_gpu) {
    const std::int64_t half = bytes_of(activation_dtype(plan.precision));
    for (const std::int64_t elements : tensors) { model.push_back(tape.make(half * elements)); }
  }
  tape.make(sizes.flat);
  for (TapeTensor& tensor : model) { tape.free(tensor); }
  TapeTensor part = tape.make(sizes.part);
  tape.make(sizes.part_fp32);
  tape.free(part);
  TapeTensor zeros = tape.make(sizes.part_fp32);  // gradients of the optimizer's first, empty step
  tape.free(zeros);
  return tape.take_events();
}

std::int64_t deepspeed_left_by_start_up(const Job& job, const Plan& plan, std::int64_t parameters) {
  if (plan.zero == 3) {
    return 0;
  }
  const StartUp sizes = start_up(job, plan, parameters);
  return (sizes.flattens_on_the_gpu ? sizes.flat : 0) + sizes.part + sizes.part_fp32;
}

}  // namespace shardplan
