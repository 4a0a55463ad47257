#include "estimator/frameworks/megatron/blocks/linear.h"

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/pieces/memory_model.h"

namespace shardplan::megatron {

void keep_or_recompute(MegatronBlock& block, bool recomputed, Step replayed, std::string_view name,
                       std::int64_t elements, DType dtype, Life life, std::string_view formula) {
  if (recomputed) {
    block.rows.recompute(name, elements, dtype, life, replayed, formula);
  } else {
    block.rows.keep(name, elements, dtype, life, formula);
  }
}

bool accumulates_beside(const Job& job, const Plan& plan) {
  return job.profile.memory_model == MemoryModel::kMegatron && !is_megatron_fsdp(job, plan);
}

void add_weight_gradient(MegatronBlock& block, std::string_view name, std::int64_t elements,
                         Step step, std::int64_t count) {
  if (!fuses_weight_gradients(block.job, block.plan)) {
    block.rows
        .use(name, count * elements, block.shape.dtype, step, step,
             "weight gradient before it is added to the main gradient")
        .is_freed_in_use = accumulates_beside(block.job, block.plan);
  } else if (block.job.profile.dummy_weight_gradients) {
    block.rows.make_once(name, elements, block.shape.dtype, step,
                         "what autograd gets in its place, of a weight's shape");
  }
}

void add_fp8_cast(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step) {
  if (block.plan.precision == Precision::kFp8) {
    block.rows.use(name, block.output_gradient(elements), DType::kFp8, step, step,
                   "output gradient in fp8, in the layouts of its two products");
  }
}

void add_fp8_part(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step) {
  if (block.plan.precision == Precision::kFp8) {
    const std::int64_t layouts = fp8_scales_tensors(block.job) ? 1 : 2;
    block.rows.use(name, layouts * block.linear_elements(elements), DType::kFp8, step, step,
                   "this rank's part of the output gradient in fp8, before it is gathered");
  }
}

}  // namespace shardplan::megatron
