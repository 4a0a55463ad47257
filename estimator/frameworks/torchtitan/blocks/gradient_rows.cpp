#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {
namespace {

BlockRow shared_gradient(const TitanBlock& block, std::int64_t elements, std::int64_t shard,
                         DType dtype, Step born) {
  const bool waits = block.fsdp.is_sharded && !block.fsdp.reduces_each_backward;
  const std::int64_t share = block.fsdp.is_sharded && !waits ? div_ceil(elements, shard) : elements;
  BlockRow row{
      .component = Component::kGradients,
      .name = waits ? "gradients.accumulated" : "gradients.sharded",
      .elements = share,
      .dtype = dtype,
      .bytes = round_up(share * bytes_of(dtype), kAllocatorRounding),
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
  const bool is_of_layer = elements == block.parameters.layer;
  BlockRow row = shared_gradient(block, elements, dense_shard_size(block.job, block.plan),
                                 is_of_layer ? block.parameter_dtype() : DType::kFp32, born);
  if (is_of_layer && row.elements == elements) {
    split_gradient(row, block.layer_weights());
  }
  return row;
}

BlockRow titan_expert_gradient(const TitanBlock& block) {
  BlockRow row = shared_gradient(
      block, block.parameters.experts, expert_shard_size(block.job, block.plan),
      block.parameter_dtype(),
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

namespace {

// Beside replicas a layer's reduction stays in fp32 until backward is over. With several
// microbatches, whose backwards each begin without, rows of those behind stand where they are most:
// at the embedding, at the first layer, and one at every other; the head's, in fp32 like its
// gradient, is added to that and stays, too.
void add_kept_reductions(TitanBlock& block, BlockKind kind, std::int64_t share) {
  constexpr std::string_view kName = "fsdp.kept_reductions";
  constexpr std::string_view kFormula = "n/S in fp32: until all replicas' are summed up";
  if (num_microbatches(block.job, block.plan) == 1) {
    BlockRow row = shared_gradient(block, kind == BlockKind::kEmbedding ? 0 : share, 1,
                                   DType::kFp32, Step::kWeight);
    if (row.elements > 0) {
      row.component = Component::kCommunication;
      row.name = kName;
      row.formula = kFormula;
      block.rows.rows.push_back(row);
    }
    return;
  }
  const std::int64_t layers = block.job.model.num_layers();
  const std::int64_t behind = kind == BlockKind::kEmbedding    ? layers
                              : kind == BlockKind::kFirstLayer ? layers - 1
                              : kind == BlockKind::kLastLayer  ? 0
                                                               : 1;
  const std::int64_t head =
      div_ceil(block.parameters.head, dense_shard_size(block.job, block.plan));
  block.rows.use_as(Component::kCommunication, kName, head + behind * share, DType::kFp32,
                    kFirstBackward, kLastBackward, kFormula);
}

}  // namespace

// Reduced gradients are cast where parameters are bf16 (torch _fsdp_collectives.py, foreach_reduce,
// orig_dtype).
void add_titan_reductions(TitanBlock& block, BlockKind kind) {
  if (block.parameter_dtype() == DType::kFp32) {
    return;
  }
  const std::int64_t share =
      div_ceil(block.parameters.layer, dense_shard_size(block.job, block.plan)) +
      (block.groups_experts()
           ? div_ceil(block.parameters.experts, expert_shard_size(block.job, block.plan))
           : 0);
  if (block.keeps_reductions()) {
    add_kept_reductions(block, kind, share);
  } else if (kind != BlockKind::kEmbedding) {
    block.rows.use_as(Component::kCommunication, "fsdp.reduction_output", share, DType::kFp32,
                      Step::kWeight, Step::kWeight,
                      "n/S: before it is cast to the parameters' dtype");
  }
}

}  // namespace shardplan::torchtitan
