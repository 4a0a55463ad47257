// Optimizers that LLaMA-Factory and ms-swift bring along: GaLore, APOLLO, Adam-mini, BAdam and
// MuonClip.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// Whether the settings name one. Says which, or refuses what of it is not described.
bool read_program_optimizer(const TrainerFile& trainer, RunReading& run);

// How it steps. Called behind take_profile.
void take_program_optimizer(const TrainerFile& trainer, RunReading& run, const Library& library);

// LLaMA-Factory's BAdam, which trains one layer after the other in the type of the checkpoint.
bool trains_blocks(const TrainerFile& trainer);
// The layer of which a step holds most: the first of those that are ever trained.
std::int64_t fullest_block(const TrainerFile& trainer);

}  // namespace shardplan
