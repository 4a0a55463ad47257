// Which parts of a model a Trainer's run loads, and which of them it trains, by name.
#pragma once

#include <string>

#include "data/arguments/trainer.h"

namespace shardplan {

// A tower for pictures or sound beside the text model, the parameters that the run's own words
// freeze, and how DDP and FSDP take what gets no gradients. Called behind take_profile.
void read_parts(const TrainerFile& trainer, RunReading& run, const Library& library);

// Whether the run trains layers and modules that it names (LLaMA-Factory's freeze).
bool trains_named_layers(const TrainerFile& trainer);

// Targets of adapters that are one regular expression over names of modules; false where they are
// none. What is not the same in all layers is refused.
bool read_target_pattern(const std::string& setting, const std::string& pattern, RunReading& run);

}  // namespace shardplan
