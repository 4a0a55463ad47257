// What a Trainer's run says of its experts' weights and adapters.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// Of adapters on layers that are named by `setting`.
void refuse_expert_targets(const char* setting, RunReading& run);

// axolotl's experts that are quantized as linear layers are.
void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
