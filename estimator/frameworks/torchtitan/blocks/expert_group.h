// The experts' parameters where FSDP2 has them as a group of their own.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_expert_group(TitanBlock& block, bool is_last);

}  // namespace shardplan::torchtitan
