// Settings of a Trainer's run for weights of experts and the kernels that run them.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// axolotl's experts that are quantized as linear layers are.
void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library);
// How tokens reach experts that are dealt to ranks.
void read_dispatcher(RunReading& run, const Library& library);

// How experts run, and what kernels of the Hub take the place of (use_kernels, axolotl's plugin).
void read_expert_kernels(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
