#include "estimator/frameworks/torchtitan/chunk.h"

#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/compiled_mixture.h"
#include "estimator/frameworks/torchtitan/gpt_oss/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kWiden = 2;  // fp32 for bf16

std::vector<std::int64_t> in_bf16(std::vector<std::int64_t> elements) {
  for (std::int64_t& of : elements) { of *= kBf16; }
  return elements;
}

std::unique_ptr<EagerLayer> eager_layer(const Job& job, TitanTape& tape, const TitanSizes& sizes) {
  if (is_gpt_oss(job.model)) {
    return std::make_unique<GptOssLayer>(tape, sizes);
  }
  if (compiles_layers(job.profile) && sizes.moe.exists) {
    return std::make_unique<CompiledMixture>(tape, sizes);
  }
  return std::make_unique<EagerLayer>(tape, sizes);
}

}  // namespace

TitanChunk::TitanChunk(const Job& job, const Plan& plan, const SizesOfLayers& sizes,
                       TitanTape& tape, FullyShard& fsdp, const ChunkLayout& layout,
                       std::int64_t microbatches)
    : tape_(tape),
      sizes_(sizes.back()),
      fsdp_(fsdp),
      eager_{eager_layer(job, tape, sizes.front()), eager_layer(job, tape, sizes.back())},
      compiled_(tape, sizes_),
      compiles_blocks_(compiles_layers(job.profile) && !sizes_.moe.exists),
      embedding_(tape, sizes_),
      head_(tape, sizes_, compiles_loss(job.profile), plan.pp > 1),
      replays_ops_(plan.recompute.policy == "every_second_matmul"),
      is_sharded_(plan.zero == 3),
      root_holds_ends_(plan.zero == 3 && job.profile.root_holds_ends),
      prefetches_layers_(plan.ep > 1),
      is_pipelined_(plan.pp > 1),
      holds_last_output_(plan.pp > 1 && !runs_action_list(plan)),
      held_(static_cast<std::size_t>(microbatches)) {
  const FsdpPlan plan_of = fsdp_plan(job, plan);
  const std::int64_t shard = is_sharded_ ? dense_shard_size(job, plan) : 1;
  const std::int64_t norm = kBf16 * job.model.hidden;
  const bool keeps_reductions = titan_block(job, plan, false).keeps_reductions();
  const auto add_end = [&](const std::vector<std::int64_t>& of_end, bool reshards_forward) {
    if (!root_holds_ends_) {
      groups.push_back({.weights = of_end,
                        .shard = shard,
                        .reshards_forward = reshards_forward,
                        .ends_with_table = true,
                        .keeps_reduction = keeps_reductions});
      return;
    }
    if (!begins_with_end()) {
      groups.insert(
          groups.begin(),
          ParameterGroup{.weights = {}, .shard = shard, .keeps_reduction = keeps_reductions});
    }
    groups.front().weights.insert(groups.front().weights.end(), of_end.begin(), of_end.end());
  };
  for (const Unit& unit : layout.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      for (const BlockRun& run : unit.blocks) {
        switch (run.kind) {
          case BlockKind::kSentOutput: break;
          case BlockKind::kEmbedding:
            add_end({sizes_.table}, plan_of.reshards_forward);
            groups.front().is_shared = job.model.tied_embeddings;
            has_embedding = true;
            break;
          case BlockKind::kHead:
            add_end({norm, sizes_.table}, plan_of.reshards_head);
            has_head = true;
            break;
          default:
            const TitanBlock block = titan_block(job, plan, is_moe_layer(job, run.kind));
            for (std::int64_t layer = 0; layer < run.count; ++layer) {
              add_layer(block, unit.checkpointed);
            }
        }
      }
    }
  }
  if (root_holds_ends_ && job.profile.reshard_after_forward == ReshardAfterForward::kDefault &&
      !layers_.empty()) {
    group_of_layer(layers_.size() - 1).reshards_forward = false;
  }
}

void TitanChunk::add_layer(const TitanBlock& block, bool checkpointed) {
  const std::size_t first = begins_with_end() ? 1 : 0;
  layers_.push_back({.is_moe = block.has_experts(),
                     .checkpointed = checkpointed,
                     .group = groups.size() - first,
                     .groups_experts = block.groups_experts()});
  const bool reshards_forward = block.fsdp.reshards_forward;
  const bool is_bf16 = block.parameter_dtype() == DType::kBf16;
  groups.push_back({.weights = in_bf16(block.layer_weights()),
                    .shard = is_sharded_ ? dense_shard_size(block.job, block.plan) : 1,
                    .reshards_forward = reshards_forward,
                    .ends_with_table = block.ends_with_linear(),
                    .is_bf16 = is_bf16,
                    .keeps_reduction = block.keeps_reductions()});
  if (block.groups_experts()) {
    const std::int64_t shard = expert_shard_size(block.job, block.plan);
    groups.push_back({.weights = in_bf16(block.sharded_expert_weights()),
                      .shard = shard,
                      .reshards_forward = reshards_forward,
                      .ends_with_table = shard > 1,
                      .splits_rows = block.splits_rows(),
                      .is_bf16 = is_bf16,
                      .keeps_reduction = block.keeps_reductions()});
  }
}

LayerPass TitanChunk::forward_pass(std::size_t layer) const {
  if (layers_[layer].checkpointed) {
    return LayerPass::kSavesNothing;
  }
  return replays_ops_ ? LayerPass::kSavesOps : LayerPass::kSaves;
}

LayerPass TitanChunk::replay_pass(std::size_t layer) const {
  if (layers_[layer].checkpointed) {
    return LayerPass::kReplay;
  }
  return replays_ops_ ? LayerPass::kReplayOps : LayerPass::kSaves;
}

TapeTensor TitanChunk::layer_forward(std::size_t index, LayerTensors& layer, LayerPass pass) {
  return compiles_blocks_ ? compiled_.forward(layer, pass) : eager(index).forward(layer, pass);
}

void TitanChunk::layer_backward(std::size_t index, LayerTensors& layer, TapeTensor& gradient,
                                LayerGradients& weights) {
  if (compiles_blocks_) {
    compiled_.backward(layer, gradient, weights, replay_pass(index));
  } else {
    eager(index).backward(layer, gradient, weights, replay_pass(index));
  }
  tape_.free(layer.rotary_cast);
}

void TitanChunk::gather(ParameterGroup& group) {
  if (is_sharded_ && !group.is_gathered()) {
    fsdp_.gather(group);
  }
}

void TitanChunk::enter(ParameterGroup& group) {
  if (is_sharded_ && !group.is_unsharded()) {
    gather(group);
    fsdp_.unshard(group, true);
  }
}

void TitanChunk::enter_experts(std::size_t layer, bool holds_output) {
  ParameterGroup& group = group_of_experts(layer);
  if (!group.is_unsharded()) {
    gather(group);
    fsdp_.unshard(group, holds_output);
  }
}

// With expert parallelism a block gathers the next one ahead, experts and all (apply_fsdp,
// set_modules_to_forward_prefetch).
void TitanChunk::enter_layer(std::size_t layer) {
  enter(group_of_layer(layer));
  if (!prefetches_layers_) {
    return;
  }
  if (layer + 1 < layers_.size()) {
    gather(group_of_layer(layer + 1));
    if (layers_[layer + 1].groups_experts) {
      gather(group_of_experts(layer + 1));
    }
  } else if (has_head) {
    gather(group_of_head());
  }
  if (!layers_[layer].groups_experts) {
    return;
  }
  eager(layer).set_expert_hooks({.enter = [this, layer] { enter_experts(layer, true); },
                                 .leave_forward = [this, layer] { leave(group_of_experts(layer)); },
                                 .leave_backward = {}});
}

void TitanChunk::leave(ParameterGroup& group) {
  if (group.reshards_forward) {
    fsdp_.reshard(group);
  }
}

TapeTensor TitanChunk::embedding_forward() {
  enter(groups.front());
  if (prefetches_layers_ && !layers_.empty()) {
    gather(group_of_layer(0));
  }
  const TapeTensor stream = embedding_.forward();
  leave(groups.front());
  return stream;
}

void TitanChunk::forward_without_gradients() {
  tape_.enter_thread(false);
  TapeTensor stream = has_embedding ? embedding_forward() : TapeTensor{};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    LayerTensors layer;
    layer.input = stream;
    enter_layer(i);
    stream = layer_forward(i, layer, LayerPass::kSavesNothing);
    leave(group_of_layer(i));
    tape_.free(layer.input);
  }
  if (has_head) {
    HeadTensors head;
    head.input = stream;
    enter(group_of_head());
    head_.forward(head, false);
    leave(group_of_head());
    stream = head.logits;
    tape_.free(head.input);
  }
  fsdp_.free_held_output();
  tape_.free(stream);
}

void TitanChunk::forward(std::size_t microbatch) {
  tape_.enter_thread(false);
  Microbatch& held = held_[microbatch];
  held.layers.assign(layers_.size(), {});
  TapeTensor stream = has_embedding ? embedding_forward() : TapeTensor{};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    LayerTensors& layer = held.layers[i];
    layer.input = stream;
    layer.rotary_cast = tape_.make(sizes_.rotary_cast);
    enter_layer(i);
    stream = layer_forward(i, layer, forward_pass(i));
    leave(group_of_layer(i));
    if (forward_pass(i) == LayerPass::kSaves) {  // else an input that a checkpoint holds
      tape_.free(layer.rotary_cast);
    }
  }
  if (has_head) {
    held.head.input = stream;
    enter(group_of_head());
    head_.forward(held.head, true);
    leave(group_of_head());
  }
  fsdp_.free_held_output();
  if (is_pipelined_) {
    held.output = has_head ? std::exchange(held.head.logits, {}) : stream;
    tape_.free(last_output_);
    last_forward_ = microbatch;
  }
  if (has_head) {
    head_.loss(held.head);
  }
  for (TapeTensor& cast : tape_.autocast_cache) { tape_.free(cast); }
  tape_.autocast_cache.clear();
}

void TitanChunk::gather_ahead() {
  for (ParameterGroup& group : groups) {
    if (is_sharded_ && !group.is_unsharded() && group.gather_output.id == 0) {
      fsdp_.gather(group, AllocationStream::kCompute);
    }
  }
}

void TitanChunk::wait_gathered() {
  for (ParameterGroup& group : groups) {
    if (group.gather_output.id != 0) {
      fsdp_.unshard(group, false);
    }
  }
}

void TitanChunk::reshard() {
  for (ParameterGroup& group : groups) { fsdp_.reshard(group); }
}

void TitanChunk::reduce_accumulated() {
  if (!is_sharded_) {
    return;
  }
  if (has_embedding && sizes_.tensor_parallel) {  // this rank's rows of the whole table's gradient
    for (TapeTensor& table : groups.front().accumulated) {
      tape_.replace(table, kWiden * sizes_.table);
    }
  }
  for (ParameterGroup& group : groups) { fsdp_.reduce(group); }
  fsdp_.end_reductions();
}

void TitanChunk::free_gradients() {
  for (ParameterGroup& group : groups) {
    tape_.free(group.sharded_gradient);
    for (TapeTensor& gradient : group.accumulated) { tape_.free(gradient); }
    group.accumulated.clear();
  }
}

void TitanChunk::end_step() {
  tape_.free(last_output_, sent_gradient_);
}

}  // namespace shardplan::torchtitan
