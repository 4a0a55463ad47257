// Letters as in state.cpp.
#include "estimator/frameworks/megatron/fp8_rows.h"

#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {
namespace {

std::int64_t scale_bytes(const Job& job, const Plan& plan, const StageLayout& stage) {
  std::int64_t bytes = 0;
  using enum BlockKind;
  for (const BlockKind kind : {kDenseLayer, kMoeLayer, kOtherLayer, kFurtherLayer, kMtp}) {
    const std::int64_t count = count_blocks(stage, kind);
    if (count == 0) {
      continue;
    }
    for (const WeightShape& weight : weight_shapes(job, plan, kind)) {
      bytes += count * fp8_scale_bytes(job, weight);
    }
  }
  return bytes;
}

}  // namespace

std::vector<StateRow> megatron_fp8_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                        const StageTensors& tensors) {
  const bool alone = keeps_fp8_weights(job, plan);
  const bool gathers_apart = gathers_through_gradients(job, plan);
  const bool one_layout = fp8_copies(job) == 1;
  const Phase first = alone ? Phase::kStartUp : Phase::kForward;
  std::vector<StateRow> rows;
  rows.push_back({.component = Component::kParameters,
                  .name = alone ? "parameters.fp8_weights" : "parameters.fp8_copies",
                  .elements = tensors.dense_linear + tensors.expert,
                  .dtype = DType::kFp8,
                  .copies = fp8_copies(job),
                  .first = first,
                  .formula = one_layout
                                 ? "L: linear weights, in the one layout that all products take"
                                 : "L: linear weights, row-wise and column-wise"});
  rows.push_back({.component = Component::kParameters,
                  .name = "parameters.fp8_scales",
                  .elements = scale_bytes(job, plan, stage),
                  .dtype = DType::kFp8,
                  .first = first,
                  .formula = "2*L/32 bytes with mxfp8, 8*L/128^2 blockwise, padded"});
  rows.push_back(
      {.component = Component::kParameters,
       .name = "parameters.fp8_weights.padding",
       .elements = alone && !gathers_apart ? tensors.linear_padding + tensors.expert_padding : 0,
       .dtype = DType::kFp8,
       .first = first,
       .formula = "starts at multiples of 64 elements, buckets end at lcm(S, 128)"});
  rows.push_back(
      {.component = Component::kParameters,
       .name = "parameters.gather_buffer",
       .elements = gathers_apart ? tensors.dense - tensors.dense_linear + tensors.dense_padding : 0,
       .dtype = activation_dtype(plan.precision),
       .first = first,
       .formula = "N-L: what is not in fp8 is gathered here and copied; fp8 weights "
                  "through their gradients' buffer"});
  return rows;
}

StateRow cast_main_parameters(const Job& job, const Plan& plan, std::int64_t elements) {
  const bool casts = keeps_fp8_weights(job, plan) && !gathers_through_gradients(job, plan) &&
                     plan.master_dtype == DType::kFp32;
  return {.component = Component::kTemporaries,
          .name = "optimizer.cast_main_parameters",
          .elements = casts ? elements : 0,
          .dtype = activation_dtype(plan.precision),
          .first = Phase::kOptimizer,
          .last = Phase::kOptimizer,
          .formula = "L/S: main parameters in bf16, all at once, before they are cast to fp8",
          .is_split = true};
}

}  // namespace shardplan::megatron
