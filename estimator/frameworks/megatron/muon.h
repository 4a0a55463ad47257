// Muon as Megatron-LM core_v0.16.1 runs it (core/optimizer/muon.py) with Emerging-Optimizers v0.1.0
// (orthogonalized_optimizers/orthogonalized_optimizer.py, muon_utils.py): matrices of layers have
// one moment, which Newton-Schulz iterations orthogonalise in bf16; embedding, head and vectors
// have AdamW. dist_muon gives every data-parallel rank whole parameters and gathers them behind the
// step (core/optimizer/layer_wise_optimizer.py).
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/plan/job.h"
#include "estimator/time/update_times.h"

namespace shardplan::megatron {

// Whether ranks update parts of the parameters: dist_muon with several data-parallel ranks.
bool divides_muon(const Job& job, const Plan& plan);

// `count` equal parameters of one rank's stage.
struct MuonTensor {
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  std::int64_t count = 1;
  std::int64_t key_rows = 0;  // packed queries, keys and values: those of the keys; each apart
  bool is_matrix = false;     // orthogonalised
  bool is_expert = false;
  std::int64_t elements() const { return rows * columns; }
};

HeldBlocks held_blocks(const Job& job, const StageLayout& stage);

// In the order in which ranks are dealt them: small before large (shard_params).
std::vector<MuonTensor> muon_tensors(const Job& job, const Plan& plan, const HeldBlocks& held);

// What is there in fp32 while a matrix is orthogonalised, in elements: three of the matrix, or of
// its queries, with Nesterov's momentum the changed gradient, and copies of packed parts.
struct MuonTemporary {
  std::int64_t matrix = 0;  // of each of the three
  std::int64_t changed = 0;
  std::int64_t parts = 0;
  std::int64_t total() const { return 3 * matrix + changed + parts; }
};

// What is there in bf16 while updated parameters are gathered, in elements: a tensor for each rank,
// the rank's own flat, and where all have as many a flat copy of everybody's.
struct MuonGather {
  std::int64_t ranks = 0;
  std::int64_t all = 0;
  std::int64_t own = 0;
  std::int64_t flat = 0;
  std::int64_t total() const { return all + own + flat; }
};

// What one rank updates, in elements.
struct MuonShare {
  std::int64_t dense = 0;
  std::int64_t expert = 0;
  std::int64_t dense_second_moment = 0;  // what AdamW updates
  MuonGather gather;                     // of dense ones or of experts, whichever is more
  MuonTemporary temporary;               // the largest
};
// Of the rank with the most state; where experts have ranks of their own, the most of either.
MuonShare fullest_muon_share(const Job& job, const Plan& plan,
                             const std::vector<MuonTensor>& tensors);
// The parameters that it updates, in the same order.
std::vector<MuonTensor> fullest_muon_tensors(const Job& job, const Plan& plan,
                                             const std::vector<MuonTensor>& tensors);

// Update of the rank that takes longest, and of a list of tensors.
double muon_s(const Job& job, const Plan& plan, const std::vector<MuonTensor>& tensors);

}  // namespace shardplan::megatron
