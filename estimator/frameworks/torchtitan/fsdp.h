// FSDP2 around the blocks of a chunk: gathered parameters, reduced gradients, and the buffers of
// both (torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py, _fsdp_collectives.py).
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

// The parameters of one block, gathered and reduced together.
struct ParameterGroup {
  std::vector<std::int64_t> weights;  // bytes of each in bf16, on this rank before sharding
  std::int64_t shard = 1;             // ranks that share them
  bool reshards_forward = false;
  bool ends_with_table = false;  // the last weight is large: the embedding's, head's, an expert's
  bool is_shared = false;        // of the head: its gradient is added to the head's
  bool splits_rows = false;      // sharded by the second dimension (Shard(1))
  bool is_bf16 = false;          // parameters, reduced gradients and moments; else fp32
  bool keeps_reduction = false;  // in fp32, to the end of backward (AllReduceState)

  TapeTensor gather_output = {};
  std::vector<TapeTensor> unsharded = {};    // parameters as the block reads them
  std::vector<TapeTensor> gradients = {};    // of backward, bf16; fp32 once they are accumulated
  std::vector<TapeTensor> accumulated = {};  // fp32, of the microbatches so far
  TapeTensor sharded_gradient = {};

  std::int64_t bytes() const;                                     // of all weights in bf16
  std::int64_t element_bytes() const { return is_bf16 ? 2 : 4; }  // of parameters
  bool is_unsharded() const { return !unsharded.empty(); }
  bool is_gathered() const { return is_unsharded() || gather_output.id != 0; }
};

class FullyShard {
 public:
  explicit FullyShard(TitanTape& tape) : tape_(tape) {}

  // All-gather; `stream`: that of the caller where a schedule asks for it ahead of the block
  // (get_all_gather_streams).
  void gather(ParameterGroup& group, AllocationStream stream = AllocationStream::kGather);
  // Copies parameters out of the gathered buffer, which forward holds until the next block's.
  void unshard(ParameterGroup& group, bool holds_output);
  void free_held_output() { tape_.free(held_output_); }
  void reshard(ParameterGroup& group);

  // Reduce-scatter of the gradients; they add to those of an earlier microbatch in place.
  void reduce(ParameterGroup& group);
  void end_reductions() {
    tape_.free(reduction_input_);
    free_all(kept_reductions_);
  }
  // Pipelines add up unsharded gradients in fp32 (to_accumulated_grad_if_needed).
  void accumulate(ParameterGroup& group);

 private:
  void free_all(std::vector<TapeTensor>& tensors);
  TapeTensor join_chunks(std::vector<TapeTensor>& gradients);

  TitanTape& tape_;
  TapeTensor held_output_;
  TapeTensor reduction_input_;
  std::vector<TapeTensor> kept_reductions_;
};

}  // namespace shardplan::torchtitan
