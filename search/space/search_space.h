// What a search chooses from: the values of each axis of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

// The values that each axis takes, in order of preference: of plans that differ only in a choice
// without effect the first stands for all. The space is the product; dp follows from the others.
// Every axis takes any values; what default_space puts there is said beside it.
struct SearchSpace {
  std::vector<std::int64_t> tp;   // divisors of heads and world inside one NVLink domain
  std::vector<std::int64_t> cp;   // divisors of sequence / 2 and world that leave >= 1024 tokens
  std::vector<std::int64_t> ep;   // divisors of experts and world; dense models: 1
  std::vector<std::int64_t> etp;  // 1 and the tp that divide an expert; dense models: 1
  std::vector<std::int64_t> pp;   // divisors of world up to layers + 2
  std::vector<std::int64_t> vpp;  // 1, and up to 16 where some pp * vpp divides the layers or
                                  // misses them by at most 3
  std::vector<std::int64_t> dp;   // empty: whatever follows (default)
  std::vector<std::int64_t> dp_replicate;  // torchtitan: divisors of the nodes, and the world;
                                           // others: 1 and, where the profile shards gradients,
                                           // the nodes
  std::vector<std::int64_t> zero;          // all stages the profile knows; megatron: 0 and 1
  std::vector<std::int64_t> micro_batch;   // divisors of global batch up to 32 and 131072 tokens
  std::vector<bool> sequence_parallel;     // on and off
  std::vector<Schedule> schedule;          // all the profile knows
  std::vector<CpMethod> cp_method;         // all the profile knows, its default first
  std::vector<Recompute> recompute;        // none, selective sets, full by layer, full for n layers
  std::vector<Precision> precision;        // bf16
  std::vector<double> moe_buffer_factor = {1};
  std::vector<RankOrder> rank_order;  // tp fastest, then cp, dp, pp
  std::vector<DType> grad_dtype;      // the profile's default
  std::vector<DType> master_dtype = {DType::kFp32};
  std::vector<DType> exp_avg_dtype = {DType::kFp32};
  std::vector<DType> exp_avg_sq_dtype = {DType::kFp32};
  std::vector<Offload> offload = {Offload{}};
  bool uneven_layers = true;  // where pp * vpp does not divide the layers: splits with a lighter
                              // first and last chunk
};

}  // namespace shardplan
