// A layer of nanotron: its rows.
#pragma once

#include "estimator/frameworks/nanotron/block.h"

namespace shardplan::nanotron {

void add_layer(NanotronBlock& b);

}  // namespace shardplan::nanotron
