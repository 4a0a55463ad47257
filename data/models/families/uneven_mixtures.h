// Families with experts whose layers differ in attention: in windows, sinks, heads or indexers.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> uneven_mixture_families();

}  // namespace shardplan
