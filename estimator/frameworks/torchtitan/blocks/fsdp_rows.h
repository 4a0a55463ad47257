// Buffers of FSDP2 around a torchtitan block: what it gathers, prefetches and reduces.
#pragma once

#include <cstdint>
#include <span>

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

// The gathered parameters of a block that is reduced after each backward: there from its forward to
// its backward, or freed after the one and gathered again for the other.
struct TitanUnsharded {
  std::int64_t elements = 0;
  std::span<const std::int64_t> weights = {};  // elements of each; none: one tensor
  bool reshards_forward = false;
  Step last_forward_use = Step::kForwardOutput;
  Step gathered_again = Step::kBackwardOutput;
};

// The last tensor of the parameters that are gathered and reduced together.
enum class GroupEnd { kLayer, kTable, kRowsOfTable };

struct TitanInTurn {
  std::int64_t elements = 0;
  std::int64_t next = 0;  // of the block whose backward comes next, as far as it is prefetched
  Step last_forward_use = Step::kForwardOutput;
  Step gathered_again = kFirstBackward;
};

// What a block gathers, prefetches and reduces. `next`: parameters of the block whose backward
// comes after this one's, `previous`: of the one whose came before.
struct FsdpSizes {
  std::int64_t own = 0;
  std::int64_t next = 0;
  std::int64_t previous = 0;
  std::int64_t before = 0;  // of the block whose forward came before
  bool reshards_forward = false;
  Step previous_until = Step::kBackwardNorm;
};

void add_fsdp_gathered(TitanBlock& block, const FsdpSizes& sizes);
void add_fsdp_reduction(TitanBlock& block, const FsdpSizes& sizes);
void add_layer_fsdp(TitanBlock& block, BlockKind kind);
void add_titan_all_gather(TitanBlock& block, std::int64_t own, std::int64_t before);
void add_titan_unsharded(TitanBlock& block, const TitanUnsharded& of);
void add_titan_pipelined(TitanBlock& block, std::int64_t own, GroupEnd end);
void add_titan_gathered_in_turn(TitanBlock& block, const TitanInTurn& of);

}  // namespace shardplan::torchtitan
