// Hybrids of Mamba-2 as Megatron-LM's arguments say them (pretrain_mamba.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"

namespace shardplan {

// A letter a layer, of --hybrid-layer-pattern, --hybrid-override-pattern or both ratios; none: the
// model is no hybrid. Throws InputError where a letter is unknown or the letters are not as many
// as --num-layers says.
std::optional<std::string> hybrid_pattern(const RunArguments& arguments);

// The reason why a hybrid of these arguments is not described; empty: it is.
std::string why_hybrid_refused(const RunArguments& arguments);

// The layers and Mamba-2's sizes, of a model that has all others. Turns positions or not as
// --position-embedding-type says.
void read_hybrid(const RunArguments& arguments, const std::string& pattern, ModelSpec& model);

// Says of a pattern by its later name which release's layers are counted.
void note_later_pattern(const RunArguments& arguments, std::vector<std::string>& notes);

// Megatron-SWIFT's --linear-decoupled-in-proj: two products in front of the model's gated delta
// nets.
bool splits_mixer_input(const RunArguments& arguments, const ModelSpec& model);

// What the run says of its mixers' products; refuses models of other layers. Called behind
// take_profile.
void read_megatron_mixers(const RunArguments& arguments, RunReading& run, const Library& library);

}  // namespace shardplan
