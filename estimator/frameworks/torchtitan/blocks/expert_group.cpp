#include "estimator/frameworks/torchtitan/blocks/expert_group.h"

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"
#include "estimator/frameworks/torchtitan/blocks/mixture.h"
#include "estimator/frameworks/torchtitan/parameters.h"

namespace shardplan::torchtitan {

// The experts' parameters, a group of their own: gathered while the block before runs, with the
// buffers of the next block's, and reduced before the rest of the block. Nothing with experts runs
// in a pipeline (rules.cpp, qwen3_needs_pp_1).
void add_titan_expert_group(TitanBlock& block, bool is_last) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  const TitanParameters& p = block.parameters;
  const std::int64_t shard = expert_shard_size(block.job, block.plan);
  const std::int64_t gathered = shard > 1 ? p.experts : 0;
  const DType dtype = block.shape.dtype;
  const std::vector<std::int64_t> weights = block.sharded_expert_weights();
  // A replay finds all parameters there, and add_replay has what it holds beside backward's
  // buffers.
  const auto gather_in_forward = [&](std::string_view name, std::int64_t elements, Step dies,
                                     std::string_view formula) {
    block.gather(name, elements, Step::kForwardInput, dies, formula);
    if (elements > 0) {
      rows.rows.back().is_not_replayed = true;
    }
  };
  if (block.is_gpt_oss()) {
    // A replay's experts hold it, too, to the end of their own forward.
    block.gather("fsdp.expert_gather_output", gathered, Step::kForwardInput, Step::kForwardUnsort,
                 "n: until the experts are done");
    block.gather("fsdp.expert_gather_output", gathered, Step::kForwardCombine, Step::kForwardLogits,
                 "n: until the next block has been gathered");
    if (gathered > 0) {
      rows.rows.back().is_not_replayed = true;
    }
  } else {
    gather_in_forward("fsdp.expert_gather_output", gathered, Step::kForwardLogits,
                      "n: until the next block has been gathered");
  }
  gather_in_forward("fsdp.next_gather_output", is_last ? p.head : p.layer + gathered,
                    Step::kForwardOutput, "n: of the next block");
  if (block.fsdp.reshards_forward) {
    rows.use_as(comm, "fsdp.unsharded_experts", p.experts, dtype, Step::kForwardDispatch,
                Step::kForwardUnsort, "n");
    rows.split_last(weights);
    const bool replays = block.plan.recompute.granularity != RecomputeGranularity::kNone;
    rows.use_as(comm, "fsdp.unsharded_experts_again", p.experts, dtype,
                replays ? Step::kBackwardOutput : MoeRows::kGather, MoeRows::kUnpad,
                "n: gathered again");
    rows.split_last(weights);
    block.gather("fsdp.expert_gather_again", replays ? 0 : gathered, MoeRows::kGather,
                 MoeRows::kGather,
                 "n: until it has been copied, beside that of the block whose backward is next");
  } else {
    rows.keep("fsdp.unsharded_experts", p.experts, dtype,
              {.born = Step::kForwardDispatch,
               .last_forward_use = Step::kForwardUnsort,
               .dies = MoeRows::kUnpad},
              "n: not resharded after forward");
    rows.rows.back().component = comm;
    rows.rows.back().outlives_recompute = true;
    rows.split_last(weights);
  }
  const std::int64_t copied = block.splits_rows() ? p.experts : 0;
  rows.use_as(comm, "fsdp.expert_copies", copied, dtype, Step::kForwardDispatch,
              Step::kForwardDispatch, "n: rank by rank before row by row");
  rows.use_as(comm, "fsdp.expert_copies_again", copied, dtype, MoeRows::kUnsort, MoeRows::kUnsort,
              "n");
  rows.use_as(comm, "fsdp.expert_gradient_chunks", copied > 0 ? weights.back() : 0, dtype,
              MoeRows::kReduce, MoeRows::kReduce,
              "n/3: the last gradient beside its chunks, joined rank by rank");
  rows.use_as(comm, "fsdp.expert_reduction_input", p.experts, DType::kFp32, MoeRows::kReduce,
              Step::kBackwardNorm, "n: fp32 reduce-scatter input, held until the block's");
  rows.rows.push_back(titan_expert_gradient(block));
  rows.use_as(comm, "fsdp.expert_gradients_divided", shard > 1 ? 0 : p.experts, DType::kFp32,
              Step::kBackwardRouterInput, Step::kBackwardRouterInput,
              "n: by the factor 1, where a group of one rank copies its input (foreach_reduce)");
  if (block.parameter_dtype() == DType::kBf16) {
    // Beside the gradients, their reduction in fp32; of one rank half of it comes before them.
    rows.use_as(comm, "fsdp.expert_reduction_output", div_ceil(p.experts, shard),
                shard > 1 ? DType::kFp32 : DType::kBf16, Step::kBackwardRouterInput,
                Step::kBackwardRouterInput, "n/S: before it is cast to the parameters' dtype");
  }
}

}  // namespace shardplan::torchtitan
