// One rank on the host: float64, arenas in plain memory, collectives through the run's store. What
// the supervisor is tested with where there is no GPU, and a second opinion where there is.
#pragma once

#include "validator/supervise/rank_backend.h"

namespace shardplan {

class HostRankBackend : public RankBackend {
 public:
  // The memory limit counts the program's bytes, not the host's: kHostBytesPerByte as many.
  RankResult run(const RankTask& run, Progress& progress, RunStore& store) override;
};

}  // namespace shardplan
