// The tensors that a model is made of, as DeepSpeed sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/deepspeed/zero.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// Elements of the tensors of a dense model whose parameters are all trained, in the order of
// model.parameters(): the table; those of every layer; the final norm; the head, where it has a
// table of its own.
std::vector<std::int64_t> deepspeed_tensors(const ModelSpec& model);
// Of a layer: q, k, v, o, norms of q and of k where the model has them, gate, up, down, both norms.
std::vector<std::int64_t> deepspeed_layer_tensors(const ModelSpec& model);

// Whether the model is played operator by operator over pieces/huggingface, whose source is
// transformers 5.17; else, as models of dense layers that are trained whole, tensor by tensor as of
// transformers 4.57 (llama.h).
bool plays_operators(const Job& job, const Plan& plan);
// The job as DeepSpeed trains it: in which types its weights and adapters are, and its loss.
Job as_trained(const Job& job, const Plan& plan);

// All tensors, those that are trained first; nobody has their memory.
std::vector<ZeroTensor> held_tensors(const Job& job, const Plan& plan);
// Elements of the tensors that are trained, in the order in which the optimizer has them.
std::vector<std::int64_t> trained_tensors(const Job& job, const Plan& plan);

}  // namespace shardplan::deepspeed
