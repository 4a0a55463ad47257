// Families with experts behind grouped-query attention, of 2024 to 2026.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> mixture_families();

}  // namespace shardplan
