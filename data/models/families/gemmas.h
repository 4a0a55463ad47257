// Gemma 3n and 4.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> later_gemma_families();

}  // namespace shardplan
