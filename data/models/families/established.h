// Llama and the families that differ from it in biases, norms, windows and experts.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> established_families();

}  // namespace shardplan
