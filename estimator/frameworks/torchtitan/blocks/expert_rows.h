// What the experts of a torchtitan mixture compute: their products, the gradients of inputs and
// weights, and what autocast casts for them.
#pragma once

#include "estimator/frameworks/torchtitan/blocks/mixture.h"

namespace shardplan::torchtitan {

void add_expert_products(MoeRows& m);
void add_expert_input_gradients(MoeRows& m);

// The graph holds the gradient it is called with to its end. w1's gradient comes where its input
// has been freed; under autocast both come before their sum, in fp32.
void add_compiled_expert_input_gradients(MoeRows& m);

// Until the layer's parameters, or those of the experts alone, are reduced.
void add_expert_weight_gradients(MoeRows& m);

// Beside those of every weight: of the experts autocast caches none.
void add_expert_casts(MoeRows& m);

}  // namespace shardplan::torchtitan
