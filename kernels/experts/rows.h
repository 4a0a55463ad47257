// Where the rows of a mixture of experts go, computed on the device: members of a group hold runs
// of experts, `copies` members the same run, and every member receives the rows that chose its
// experts, in the order of expert, member, row and choice. Integers, hence exact and repeatable.
// There are at most 1024 experts. Pointers are 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

struct ExpertRowsShape {
  std::int64_t choices = 0;      // rows * choices of a row, of this member; below 2^31
  std::int64_t experts = 0;      // of all members; a multiple of run_experts
  std::int64_t run_experts = 0;  // of one member
  std::int64_t copies = 1;       // members that hold the same run
  std::int64_t sequences = 1;    // rows of counts for each member
  std::int64_t member = 0;       // this one
  std::int64_t capacity = 0;     // rows that a member can receive
};

enum class RequiredRows { kOverwrite, kMaximum };

// rows     [choices]          out: the row of the receiving members; capacity or more: an overflow
// offsets  [run_experts + 1]  out: where the rows of this member's experts begin, at most capacity
// required [1]                out: the most rows that any member needs, in float; with kMaximum the
//                             larger of it and the old value
// chosen   [choices]          experts
// counts   [experts / run_experts * copies * sequences, experts]
//                             how often every member's sequences chose an expert, in float
void expert_rows(std::int32_t* rows, std::int32_t* offsets, float* required,
                 const std::int32_t* chosen, const float* counts, const ExpertRowsShape& shape,
                 RequiredRows sum, cudaStream_t stream);

}  // namespace shardplan
