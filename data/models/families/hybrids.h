// Families whose layers mix tokens by linear attention, state spaces or convolutions.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> hybrid_families();

}  // namespace shardplan
