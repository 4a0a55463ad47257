// Families whose layers a search over architectures has made uneven.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> pruned_families();

}  // namespace shardplan
