// Mixture of experts of a torchtitan layer: its rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks/mixture.h"

namespace shardplan::torchtitan {

void add_titan_moe(TitanBlock& block);

}  // namespace shardplan::torchtitan
