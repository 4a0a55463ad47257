// Readers of a Trainer's settings for saved activations on the host and for FFNs by tiles.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// Whether saved tensors, or inputs of layers, lie on the host; of axolotl's runs also where its
// older word for recomputation says so.
bool offloads_activations(const TrainerFile& trainer);

// How they go there, as the profile has it; called behind what reads the plan.
void read_activation_offload(const TrainerFile& trainer, RunReading& run, const Library& library);

// axolotl's tiled_mlp.
void read_tiles(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
