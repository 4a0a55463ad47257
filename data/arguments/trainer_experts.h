// Settings of a Trainer's run for weights and adapters of experts.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// Refuses adapters where the layers that `setting` names are experts, whose adapters are not
// described.
void refuse_expert_targets(const char* setting, RunReading& run);

// axolotl's experts that are quantized as linear layers are.
void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
