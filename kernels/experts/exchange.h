// Rows of tokens to their experts and back, straight from and into the memory of the members of a
// group: every member's buffer is a pointer that this GPU can use, of its own memory or of a peer's
// (mapped through cudaIpc or peer access). Each row has one writer, and sums run in the order of
// choices and copies: repeatable. The caller sees to it that the members' buffers are free before
// dispatch, that all have dispatched before anyone reads what was received, and that what is
// combined is there and stays until all have read it.
// T is float or __nv_bfloat16. width is a multiple of 8; pointers are 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

inline constexpr std::int64_t kMaxExpertMembers = 128;

// By member of the group, which has kMaxExpertMembers at most.
template <class T>
struct MemberPointers {
  T* at[kMaxExpertMembers] = {};
};

// Expert e is held by the members e / run_experts * copies and the copies - 1 after it. Rows at or
// beyond capacity are left out.
struct ExpertExchange {
  std::int64_t rows = 0;         // of this member
  std::int64_t num_choices = 0;  // of each; at most 32
  std::int64_t width = 0;
  std::int64_t run_experts = 0;
  std::int64_t copies = 1;
  std::int64_t capacity = 0;
};

// received         [capacity, width]    of the members, out: row places(t, k) = row t of x
// received_weights [capacity]           of the members, out: weights(t, k); unused where weights is
//                                       null
// x                [rows, width]
// choices, places  [rows, num_choices]  experts, and the rows that expert_rows() gave them
// weights          [rows, num_choices]  or null
template <class T>
void expert_dispatch(const MemberPointers<T>& received,
                     const MemberPointers<float>& received_weights, const T* x,
                     const std::int32_t* choices, const std::int32_t* places, const float* weights,
                     const ExpertExchange& exchange, cudaStream_t stream);

enum class CombineSum { kOverwrite, kAccumulate };

// out         [rows, width]        out, rounded once: row t = (its old value +) the sum of the rows
//                                  places(t, k) of the members that hold choice k
// out_scalars [rows, num_choices]  out: the same of scalars, of each choice; unused where null
// outputs     [capacity, width]    of the members
// scalars     [capacity]           of the members; unused where out_scalars is null
template <class T>
void expert_combine(T* out, float* out_scalars, const MemberPointers<const T>& outputs,
                    const MemberPointers<const float>& scalars, const std::int32_t* choices,
                    const std::int32_t* places, const ExpertExchange& exchange, CombineSum sum,
                    cudaStream_t stream);

}  // namespace shardplan
