// What the rows of the state of Megatron-LM are written with.
// Sources: memory-model of Megatron-LM (core/distributed/param_and_grad_buffer.py, core/optimizer/
// distrib_optimizer.py, core/distributed/fsdp), Transformer Engine (pytorch/module/base.py).
// Letters:
//   N dense and X expert parameters of the rank, S and S_x the ranks that share their optimizer
//   state, n the parameters of a module, L the weights of linear layers.
#pragma once

#include <cstdint>

#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::megatron {

struct MegatronState {
  const Job& job;
  const Plan& plan;
  const StageLayout& stage;
  const StageTensors& tensors;
  std::int64_t dense_shard = 1;   // S
  std::int64_t expert_shard = 1;  // S_x
  MuonShare muon = {};            // where it is the optimizer
  StateRowList rows = {};

  bool shards_optimizer() const { return plan.zero >= 1; }
  bool shards_gradients() const { return plan.zero >= 2; }
  bool shards_parameters() const { return plan.zero >= 3; }
  bool has_muon() const { return uses_muon(job); }
  bool keeps_fp8() const { return keeps_fp8_weights(job, plan); }
  bool gathers_apart() const { return gathers_through_gradients(job, plan); }
  DType parameter_dtype() const { return activation_dtype(plan.precision); }
  DType grad_dtype() const {
    return plan.precision == Precision::kFp32 ? DType::kFp32 : plan.grad_dtype;
  }

  void add(const StateRow& row) { rows.add(row); }
};

}  // namespace shardplan::megatron
