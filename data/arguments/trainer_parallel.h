// How a Trainer's run divides sequences over ranks, and copies shards, beside data parallelism.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// cp, its method, dp_replicate and dp of the plan; refuses what is not described.
void read_parallelism(const TrainerFile& trainer, std::int64_t ranks, RunReading& run);

// Ranks over which a sequence is divided; 1: none.
std::int64_t sequence_ranks(const TrainerFile& trainer);

// Tokens of a piece of ms-swift's loss of sequences that are divided, which the environment says.
void read_loss_chunk(const RunSettings& settings, const TrainerFile& trainer, RunReading& run,
                     const Library& library);

}  // namespace shardplan
