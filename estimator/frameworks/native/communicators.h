// The NCCL communicators of a rank of the native trainer and what each takes of the device.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "estimator/plan/job.h"

namespace shardplan::native {

struct NativeCommunicator {
  std::string_view name;
  std::int64_t bytes = 0;  // 0: the plan does not need it
};
using NativeCommunicators = std::array<NativeCommunicator, 16>;

// Of one rank of the pipeline stage. Allocates nothing.
NativeCommunicators native_communicators(const Job& job, const Plan& plan, std::int64_t pp_rank);

}  // namespace shardplan::native
