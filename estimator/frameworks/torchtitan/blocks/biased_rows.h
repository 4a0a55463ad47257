// The experts of GPT-OSS's mixtures: products with biases and a bounded gate.
#pragma once

#include "estimator/frameworks/torchtitan/blocks/mixture.h"

namespace shardplan::torchtitan {

void add_biased_expert_products(MoeRows& m);
void add_biased_expert_gradients(MoeRows& m);
// Until the layer's parameters, or those of the experts alone, are reduced.
void add_biased_weight_gradients(MoeRows& m);
// Most that a replay of them holds beside what it saves.
std::int64_t biased_replay_bytes(const MoeRows& m);

}  // namespace shardplan::torchtitan
