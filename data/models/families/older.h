// Families of decoders from before Llama.
#pragma once

#include <span>

#include "data/models/family.h"

namespace shardplan {

std::span<const ModelFamily> older_families();

}  // namespace shardplan
