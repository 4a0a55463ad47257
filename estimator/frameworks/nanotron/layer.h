// A layer of nanotron: its rows.
#pragma once

#include "estimator/frameworks/nanotron/block.h"

namespace shardplan {

void add_layer(NanotronBlock& b);

}  // namespace shardplan
