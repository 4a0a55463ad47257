// The attention of a model, as config.json gives it.
#pragma once

#include "data/models/family.h"

namespace shardplan {

void read_attention(ConfigReading& reading);

}  // namespace shardplan
