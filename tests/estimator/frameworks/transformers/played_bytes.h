// Bytes of rows in the play of a rank of transformers' Trainer.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/state_row.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

// Bytes that a row has at the fullest instant of a phase.
std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name);
std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name);

// The most bytes that a row has at any instant of a kind of moment, of tensors as they were asked
// for.
std::int64_t most_bytes(const Job& job, const Plan& plan, MomentKind moment, std::string_view name);

// Of all rows together, as the allocator rounds them.
std::int64_t peak_of(const Job& job, const Plan& plan, MomentKind moment);

}  // namespace shardplan::transformers
