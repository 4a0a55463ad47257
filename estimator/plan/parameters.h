// Every parameter tensor of a model with its global shape and how it is sharded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/plan/parameter_tensor.h"

namespace shardplan {

inline bool is_dense_linear(const ParameterTensor& tensor) {
  return tensor.is_linear && tensor.sharding != Sharding::kExpert;
}

// Kinds of layers that differ in their parameters, whatever they attend to.
struct ParameterKinds {
  std::vector<LayerSpec> kinds;
  std::vector<std::size_t> of_layer;  // index of `kinds`, by layer
};
ParameterKinds parameter_kinds(const ModelSpec& model);
// Whether layers with experts, or those without, are of several such kinds.
bool layers_vary(const ModelSpec& model);

// Tensors of one transformer layer, of the embedding, of the head (final norm, head matrix unless
// tied and on the same stage), and of one multi-token-prediction module.
std::vector<ParameterTensor> layer_parameters(const ModelSpec& model, const LayerSpec& layer);
std::vector<ParameterTensor> embedding_parameters(const ModelSpec& model);
// Of these the token table alone: what a second stage holds that reads it again.
std::vector<ParameterTensor> table_parameters(const ModelSpec& model);
std::vector<ParameterTensor> head_parameters(const ModelSpec& model);  // final norm [+ head matrix]
std::vector<ParameterTensor> mtp_parameters(const ModelSpec& model);

// Exact count of the whole model, tied tables once, without padding. MTP modules apart.
std::int64_t count_parameters(const ModelSpec& model);
std::int64_t count_mtp_parameters(const ModelSpec& model);
// Parameters that one token passes through (routed experts: topk of them).
std::int64_t count_active_parameters(const ModelSpec& model);

// Elements of one tensor on one rank, vocabulary padded as the profile does it; before ZeRO-3
// divides them.
std::int64_t local_elements(const Job& job, const Plan& plan, const ParameterTensor& tensor);
std::int64_t local_elements(const Job& job, const Plan& plan,
                            const std::vector<ParameterTensor>& tensors);  // their sum

struct LocalParameters {
  std::int64_t dense = 0;   // elements on one rank, sharded over dense_shard_size ranks
  std::int64_t expert = 0;  // elements on one rank, sharded over expert_shard_size ranks
  std::int64_t linear = 0;  // of the dense ones those of linear layers; the experts' all are
  std::int64_t total() const { return dense + expert; }
};

// Elements held by one rank of pipeline stage pp_rank; before ZeRO-3 divides them. With pp > 1 a
// second copy of the embedding table lies on the stage with the head when the tables are tied or
// MTP modules read it, unless that stage holds the embedding itself.
LocalParameters local_parameters(const Job& job, const Plan& plan, std::int64_t pp_rank);

}  // namespace shardplan
