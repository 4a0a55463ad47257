// One run of one plan, as the supervisor asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "validator/supervise/rank_backend.h"

namespace shardplan {

struct RunRequest {
  std::string plan;  // text that the workers' reader turns into a program; the supervisor does not
                     // look into it
  std::int64_t world_size = 1;
  std::optional<std::int64_t> simulated_rank = std::nullopt;  // only this one runs, alone
  std::int64_t warmup = 3;
  std::int64_t steps = 10;
  double learning_rate = 1e-4;
  std::uint64_t seed = 1;
  RunPrecision precision = RunPrecision::kAsPlanned;
  InitialWeights weights = InitialWeights::kFast;
  std::optional<std::int64_t> memory_limit_bytes = std::nullopt;
  bool is_traced = false;  // one more step, whose operations are timed

  std::int64_t num_processes() const { return simulated_rank ? 1 : world_size; }
};

// One line; the reader throws std::invalid_argument for what the writer never writes.
std::string text_of(const RunRequest& request);
RunRequest request_of(const std::string& text);

}  // namespace shardplan
