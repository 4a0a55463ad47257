// Parameters, gradients and optimizer state of a group of Megatron-LM's parameters: their rows.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/megatron/state_block.h"

namespace shardplan::megatron {

struct MegatronStateNames {
  std::string_view parameters;
  std::string_view gradients;
  std::string_view master;
  std::string_view exp_avg;
  std::string_view exp_avg_sq;
  std::string_view parameters_padding;
  std::string_view gradients_padding;
  std::string_view optimizer_padding;
};
inline constexpr MegatronStateNames kDenseStateNames = {
    "parameters.dense",           "gradients.dense",
    "optimizer.dense.master",     "optimizer.dense.exp_avg",
    "optimizer.dense.exp_avg_sq", "parameters.dense.padding",
    "gradients.dense.padding",    "optimizer.dense.padding"};
inline constexpr MegatronStateNames kExpertStateNames = {
    "parameters.expert",           "gradients.expert",
    "optimizer.expert.master",     "optimizer.expert.exp_avg",
    "optimizer.expert.exp_avg_sq", "parameters.expert.padding",
    "gradients.expert.padding",    "optimizer.expert.padding"};

// One of the two groups of parameters that are sharded over different ranks.
struct MegatronGroup {
  MegatronStateNames names;
  std::int64_t elements = 0;
  std::int64_t fp8 = 0;  // of these kept in fp8 alone
  std::int64_t padding = 0;
  std::int64_t fp8_padding = 0;
  std::int64_t shard = 1;
  std::int64_t whole = 0;    // elements before tensor parallelism divides them; 0: not asked for
  std::int64_t updated = 0;  // by this rank
  std::int64_t second_moment = 0;  // of these, where AdamW updates them
};

void add_megatron_group(MegatronState& state, const MegatronGroup& group);

}  // namespace shardplan::megatron
