// Reads the objective of a Trainer's run: the next token, preferences or rewards.
#pragma once

#include <cstdint>
#include <string>

#include "data/arguments/trainer.h"

namespace shardplan {

// Sequences of one sample of the run's data: 2 of pairs, one chosen and one rejected.
std::int64_t sequences_of_sample(const TrainerFile& trainer);

// The reason why the run's objective is not described; "": it is.
std::string why_no_objective(const TrainerFile& trainer);

// Changes the run's adapters as trainers of other objectives than the next token do. Called behind
// read_tuning.
void read_objective_tuning(const TrainerFile& trainer, RunReading& run);

// The profile's objective. Called behind take_profile.
void read_objective(const TrainerFile& trainer, RunReading& run, const Library& library);

// Whether the run's objective is another than the next token.
bool has_own_objective(const TrainerFile& trainer);

}  // namespace shardplan
