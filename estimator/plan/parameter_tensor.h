// One parameter tensor of a model with its global size and how it is sharded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/model_spec.h"

namespace shardplan {

enum class Sharding {
  kReplicated,  // norms, router, output biases, MLA down-projections: a copy on every tp rank
  kTp,          // divided by tp
  kVocab,       // embedding and head: rows padded as the profile does it, then divided by tp
  kExpert,      // divided by ep * etp
};

struct ParameterTensor {
  std::string name;           // "attention.qkv"
  std::int64_t elements = 0;  // of the whole model, one layer; vocabulary unpadded
  Sharding sharding = Sharding::kReplicated;
  std::int64_t kv_elements = 0;  // the part that belongs to key and value heads: where a profile
                                 // replicates these, at least one head lies on every tp rank
  bool is_linear = false;        // of a linear layer inside a block: multiplied in fp8 under fp8
  friend bool operator==(const ParameterTensor&, const ParameterTensor&) = default;
};

using ParameterTensors = std::vector<ParameterTensor>;

void add_tensor(ParameterTensors& tensors, std::string name, std::int64_t elements,
                Sharding sharding);
void add_linear(ParameterTensors& tensors, std::string name, std::int64_t elements,
                Sharding sharding);
// A norm of that width with the bias that the model's norms have.
void add_norm(ParameterTensors& tensors, const ModelSpec& model, const std::string& name,
              std::int64_t width);

}  // namespace shardplan
