// The shared experts of a torchtitan mixture, which all tokens pass: their rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks/mixture.h"

namespace shardplan::torchtitan {

// The shared experts run behind the others, and back before them.
void add_shared_experts(MoeRows& m);

void add_shared_expert_gradients(MoeRows& m);

}  // namespace shardplan::torchtitan
