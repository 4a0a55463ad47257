// A small model whose tensors are counted by hand, under transformers' Trainer.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/pieces/played_run.h"
#include "estimator/plan/job.h"

namespace shardplan {

// Two layers of hidden 512, FFN 1024, 8 heads and 4 key-value heads of 64, a vocabulary of 1024,
// tables apart; one sequence of 512 tokens a rank.
Job small_trainer_job(std::int64_t gpus);

// The parameters of a layer: q and o 512 * 512, k and v 512 * 256, gate, up and down 512 * 1024,
// two norms.
inline constexpr std::int64_t kSmallLayer =
    2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512;
inline constexpr std::int64_t kSmallTable = 1024 * 512;
inline constexpr std::int64_t kSmallModel = 2 * kSmallLayer + 2 * kSmallTable + 512;

// Of one GPU and the family: a gated delta net in the first layer, gated attention with norms of
// heads in the second.
inline constexpr DeltaSpec kSmallDelta = {
    .key_heads = 2, .value_heads = 4, .key_head_dim = 32, .value_head_dim = 64, .convolution = 4};
Job small_delta_job(const char* family);

Adapters adapters_on_all(std::int64_t rank);

Plan trainer_plan(std::int64_t zero);

// Bytes of a row that are alive when a moment of its first step begins; and those that a forward
// pass has saved.
std::int64_t trainer_bytes_at(const Job& job, MomentKind moment, std::string_view row);
std::int64_t trainer_bytes_at(const Job& job, const Plan& plan, MomentKind moment,
                              std::string_view row);
std::int64_t saved_bytes(const Job& job, std::string_view row);

}  // namespace shardplan
