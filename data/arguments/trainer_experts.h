// Settings of a Trainer's run for weights of experts.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// axolotl's experts that are quantized as linear layers are.
void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
