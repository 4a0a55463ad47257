// Parameters of a torchtitan block on a rank, and how FSDP2 treats them.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::torchtitan {

// How FSDP2 treats the gathered parameters of a block.
struct FsdpPlan {
  bool is_sharded = false;            // zero 3; else fp32 parameters under autocast
  bool reshards_forward = false;      // freed after a layer's forward, gathered again in backward
  bool reshards_head = false;         // the same for final norm and head
  bool reduces_each_backward = true;  // without pipelining; else once, after the last microbatch
  bool root_holds_ends = false;       // embedding, final norm and head are one group
};

// Parameters on one rank, before they are sharded.
struct TitanParameters {
  std::int64_t embedding = 0;
  std::int64_t layer = 0;        // but for experts that are a group of their own
  std::int64_t layer_norms = 0;  // of these, the norms'
  std::int64_t head = 0;         // final norm and output, a table of its own where it is tied, too
  std::int64_t experts = 0;      // of a layer, where expert parallelism makes them their own group
};

FsdpPlan fsdp_plan(const Job& job, const Plan& plan);
// Every rank has the whole model, and gradients are summed by DDP (models/llama3/infra/
// parallelize.py apply_ddp).
bool replicates(const Job& job, const Plan& plan);
// FSDP2 shards a tied table twice where embedding and head are groups of their own, and finds the
// one in both places only when the first forward begins (torch _fsdp_param_group.py, lazy_init).
bool fsdp_unties_table(const Job& job, const Plan& plan);

// Of so many elements of a rank's experts: FSDP shards their first dimension and pads it to a
// multiple of the ranks, what it gathers and reduces likewise (_fsdp_param.py, _init_sharded_param;
// _fsdp_common.py, _get_dim0_padded_size).
std::int64_t padded_experts(const Job& job, const Plan& plan, std::int64_t elements);
// Where ep and there are more shards than experts it divides the second dimension instead, and
// copies (models/llama4/infra/parallelize.py, apply_fsdp).
bool splits_expert_rows(const Job& job, const Plan& plan);

TitanParameters titan_parameters(const Job& job, const Plan& plan, bool is_moe);

}  // namespace shardplan::torchtitan
