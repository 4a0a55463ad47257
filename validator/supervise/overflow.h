// Experts that were chosen more often than their buffers hold: nothing of the step counts then.
#pragma once

#include <optional>

#include "validator/supervise/rank_backend.h"

namespace shardplan {

// All ranks of a run call this after a step, so that nobody goes on into the next one alone.
// `needed` is nothing where the rows of this rank's group fit. Throws RunFailure: of every group
// that overflowed with its own factor, an echo on the other ranks.
void require_rows_fit(const RankTask& run, RunStore& store, std::int64_t step,
                      const std::optional<double>& needed);

}  // namespace shardplan
