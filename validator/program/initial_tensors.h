// The unsharded tensors of a model and the values that training begins with.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "estimator/plan/model_spec.h"
#include "validator/program/matrix.h"

namespace shardplan {

// Logical tensors by name, unsharded and unpacked; y = x * W with W [inputs, outputs]:
//   embedding [V,h], head [h,V] (absent when tied), final_norm [1,h],
//   layers.I.attention.{norm,q,k,v,o}, layers.I.ffn.norm, layers.I.ffn.{gate,up,down},
//   layers.I.router [h,E], layers.I.experts.J.{gate,up,down}, layers.I.shared.{gate,up,down}
using Tensors = std::map<std::string, Matrix>;

// The initial value of element `index` of a logical tensor: the same numbers for every sharding.
double initial_value(const std::string& tensor, std::int64_t index, std::uint64_t seed);

// All logical tensors of the model with their initial values.
Tensors initial_tensors(const ModelSpec& model, std::uint64_t seed);

}  // namespace shardplan
