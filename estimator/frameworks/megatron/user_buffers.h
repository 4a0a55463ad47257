// Communication buffers of Transformer Engine's userbuffers, which Megatron-LM allocates under
// --tp-comm-overlap (profile: tp_overlap pieces).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "estimator/plan/job.h"

namespace shardplan::megatron {

// Whether the plan's tensor-parallel collectives go through userbuffers.
bool has_user_buffers(const Job& job, const Plan& plan);

// One buffer outside PyTorch's allocator, from start-up to the end.
struct UserBuffer {
  std::string_view name;  // the product that it is for: "qkv_fprop"
  std::int64_t bytes = 0;
};

// One buffer of [micro_batch * sequence / cp, hidden] for each product that has a collective beside
// it, whatever its method is, and the region of flags of the communicator. Elements of the default
// configuration: one byte where fp8 operands are gathered, else two. Every buffer is mapped in
// whole pages of 2 MiB. Transformer Engine v2.9 pytorch/module/base.py (initialize_ub), common/
// comm_gemm_overlap/userbuffers/userbuffers-host.cpp (register_user_buffer_collective);
// Megatron-LM core_v0.16.1 training/initialize.py (_initialize_tp_communicators).
std::array<UserBuffer, 13> user_buffers(const Job& job, const Plan& plan);

// Transformer Engine's workspace of cuBLAS is as many times as large, one part for each stream of
// pieces (pytorch/module/base.py, _NUM_MAX_UB_STREAMS).
inline constexpr std::int64_t kUserBufferStreams = 3;

}  // namespace shardplan::megatron
