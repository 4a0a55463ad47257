// Tiny jobs and plans for the tests of lowering, checks and the host backend.
#pragma once

#include <string>
#include <vector>

#include "validator/host/backend.h"
#include "validator/lower/lower.h"

namespace shardplan {

ModelSpec tiny_model();  // hidden 16, 4 layers, vocabulary 29, 4 query and 2 kv heads
ModelSpec wide_model();  // 8 query and 8 kv heads, for tp up to 8; the second layer has a window
// The same with experts: 8, of which a token has 2, and a shared one, in the second and third
// layer; and 4, of which a token has 3, in every layer.
ModelSpec tiny_moe();
ModelSpec wide_moe();

Job tiny_job(const ModelSpec& model, std::int64_t world);
Batch random_batch(const Job& job, std::uint64_t seed);

struct StepResult {
  double loss = 0;
  Tensors gradients;
};

// One step of the plan on the host from the initial tensors of seed 7; dead memory is poisoned.
StepResult run_step(const Job& job, const Plan& plan, const Batch& batch);

// The largest |a - b| over the largest |b|, tensor by tensor; infinity for different names.
double worst_relative_difference(const Tensors& a, const Tensors& b);
bool bitwise_equal(const Tensors& a, const Tensors& b);

// Lifetimes in the dynamic arena that could begin an operation later, or end one sooner, without
// operation_problems(). Left out are cells of tokens of all tp ranks, which stand for the whole
// step, used or not.
std::int64_t num_needless_lifetimes(Program program);

std::string text_of(const Plan& plan);

}  // namespace shardplan
