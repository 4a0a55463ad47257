// Families with latent attention, and those whose indexer chooses its keys.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> latent_families();

}  // namespace shardplan
