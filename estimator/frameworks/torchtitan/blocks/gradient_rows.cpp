#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {
namespace {

BlockRow shared_gradient(const TitanBlock& block, std::int64_t elements, std::int64_t shard,
                         Step born) {
  const bool waits = block.fsdp.is_sharded && !block.fsdp.reduces_each_backward;
  const std::int64_t share = block.fsdp.is_sharded && !waits ? div_ceil(elements, shard) : elements;
  BlockRow row{
      .component = Component::kGradients,
      .name = waits ? "gradients.accumulated" : "gradients.sharded",
      .elements = share,
      .dtype = DType::kFp32,
      .bytes = round_up(share * bytes_of(DType::kFp32), kAllocatorRounding),
      .born = born,
      .last_forward_use = kLastForward,
      .dies = Step::kWeight,
      .formula = waits ? "n: fp32, unsharded until the last microbatch (set_requires_gradient_"
                         "sync in pipelining/stage.py)"
                       : "n/S: output of the reduce-scatter, the parameter's gradient",
      .is_gradient = true,
      .is_made_again = block.fsdp.is_sharded && !waits,
      .stream =
          waits || !block.fsdp.is_sharded ? AllocationStream::kCompute : AllocationStream::kReduce};
  return row;
}

}  // namespace

void split_gradient(BlockRow& row, const std::vector<std::int64_t>& weights) {
  row.bytes = 0;
  for (const std::int64_t weight : weights) {
    row.parts.push_back(round_up(weight * bytes_of(DType::kFp32), kAllocatorRounding));
    row.bytes += row.parts.back();
  }
}

BlockRow titan_gradient(const TitanBlock& block, std::int64_t elements, Step born) {
  BlockRow row = shared_gradient(block, elements, dense_shard_size(block.job, block.plan), born);
  if (elements == block.parameters.layer && row.elements == elements) {
    split_gradient(row, block.layer_weights());
  }
  return row;
}

BlockRow titan_expert_gradient(const TitanBlock& block) {
  BlockRow row = shared_gradient(
      block, block.parameters.experts, expert_shard_size(block.job, block.plan),
      block.fsdp.reduces_each_backward ? Step::kBackwardRouterInput : Step::kWeight);
  if (!block.fsdp.reduces_each_backward) {
    split_gradient(row, block.expert_weights());
  }
  return row;
}

// Under tp the gradient of the table that autograd makes is dense, with zeros in the rows of other
// ranks (a Partial DTensor). Until the last microbatch of a pipeline it is accumulated as it is
// (_fsdp_param.py, to_accumulated_grad_if_needed); else a rank's rows are reduced.
BlockRow titan_embedding_gradient(const TitanBlock& block) {
  const bool waits = block.fsdp.is_sharded && !block.fsdp.reduces_each_backward;
  const std::int64_t elements =
      waits ? padded_vocab(block.job, block.plan) * block.shape.hidden : block.parameters.embedding;
  return titan_gradient(block, elements,
                        block.is_autocast() ? Step::kBackwardOutput : Step::kBackwardInput);
}

}  // namespace shardplan::torchtitan
