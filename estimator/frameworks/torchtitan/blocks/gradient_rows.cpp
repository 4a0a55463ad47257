#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"

#include <algorithm>

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

// A rank's share of what a layer's groups reduce.
std::int64_t reduced_share(const Job& job, const Plan& plan, const TitanParameters& of) {
  const std::int64_t experts =
      of.experts > 0 ? div_ceil(of.experts, expert_shard_size(job, plan)) : 0;
  return div_ceil(of.layer, dense_shard_size(job, plan)) + experts;
}

// The same of all layers, of those with experts, and whether these stand behind all others.
struct ReducedLayers {
  std::int64_t all = 0;
  std::int64_t with_experts = 0;
  bool experts_last = false;
};

ReducedLayers reduced_layers(const TitanBlock& block) {
  const std::vector<LayerSpec>& layers = block.job.model.layers;
  ReducedLayers sum{.experts_last = block.job.model.has_dense_layers() &&
                                    block.job.model.has_moe_layers() &&
                                    std::ranges::is_sorted(layers, {}, &LayerSpec::is_moe)};
  for (const bool is_moe : {false, true}) {
    const std::int64_t count = std::ranges::count(layers, is_moe, &LayerSpec::is_moe);
    if (count > 0) {
      const std::int64_t share =
          reduced_share(block.job, block.plan, titan_parameters(block.job, block.plan, is_moe));
      sum.all += count * share;
      sum.with_experts += is_moe ? count * share : 0;
    }
  }
  return sum;
}

// Of the layers whose backward came before that of a layer of such a kind: all behind the first
// ones, one behind every other, of which each adds as much as its activations leave.
std::int64_t reduced_before(const TitanBlock& block, BlockKind kind, std::int64_t own) {
  const ReducedLayers layers = reduced_layers(block);
  switch (kind) {
    case BlockKind::kEmbedding: return layers.all;
    case BlockKind::kFirstLayer: return layers.all - own;
    case BlockKind::kFirstMoeLayer: return layers.experts_last ? layers.with_experts - own : own;
    case BlockKind::kDenseLayer: return layers.experts_last ? layers.with_experts : own;
    case BlockKind::kLastLayer: return 0;
    default: return own;
  }
}

// Beside replicas a group's reduction stays in fp32 until backward is over. With several
// microbatches, whose backwards each begin without, rows of those before stand where they are most;
// with one, where parameters are bf16, each is there from its layer's backward on.
void add_kept_reductions(TitanBlock& block, BlockKind kind, std::int64_t share) {
  constexpr std::string_view kName = "fsdp.kept_reductions";
  constexpr std::string_view kFormula = "n/S in fp32: until all replicas' are summed up";
  if (!block.has_several_microbatches()) {
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
  const std::int64_t head =
      block.fsdp.root_holds_ends
          ? 0
          : div_ceil(block.parameters.head, dense_shard_size(block.job, block.plan));
  block.rows.use_as(Component::kCommunication, kName, head + reduced_before(block, kind, share),
                    DType::kFp32, kFirstBackward, kLastBackward, kFormula);
}

}  // namespace

// Reduced gradients are cast where parameters are bf16 (torch _fsdp_collectives.py, foreach_reduce,
// orig_dtype).
void add_titan_reductions(TitanBlock& block, BlockKind kind) {
  const bool casts = block.parameter_dtype() == DType::kBf16;
  const std::int64_t share = reduced_share(block.job, block.plan, block.parameters);
  if (block.keeps_reductions()) {
    add_kept_reductions(block, kind, share);
  } else if (casts && kind != BlockKind::kEmbedding) {
    block.rows.use_as(Component::kCommunication, "fsdp.reduction_output", share, DType::kFp32,
                      Step::kWeight, Step::kWeight,
                      "n/S: before it is cast to the parameters' dtype");
  }
}

}  // namespace shardplan::torchtitan
