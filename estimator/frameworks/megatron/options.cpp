#include "estimator/frameworks/megatron/options.h"

#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {

bool is_megatron_fsdp(const Job& job, const Plan& plan) {
  return job.profile.memory_model == MemoryModel::kMegatron && plan.zero >= 2;
}

DType fsdp_gradient_dtype(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? DType::kFp32 : plan.grad_dtype;
}

bool fuses_weight_gradients(const Job& job, const Plan& plan) {
  return job.profile.gradient_accumulation_fusion &&
         (!is_megatron_fsdp(job, plan) ||
          fsdp_gradient_dtype(plan) == activation_dtype(plan.precision));
}

}  // namespace shardplan::megatron
