// FSDP2's buffers around a block, the ends of the model, and the table that puts blocks together.
// Functions of PyTorch 2.11 are named in data/frameworks/torchtitan.md.
#include "estimator/frameworks/torchtitan/blocks.h"

#include <algorithm>
#include <utility>

#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

// What a block gathers, prefetches and reduces. `next`: parameters of the block whose backward
// comes after this one's, `previous`: of the one whose came before.
struct FsdpSizes {
  std::int64_t own = 0;
  std::int64_t next = 0;
  std::int64_t previous = 0;
  std::int64_t before = 0;  // of the block whose forward came before
  bool reshards_forward = false;
  Step previous_until = Step::kBackwardNorm;
};

void add_gathered(TitanBlock& block, const FsdpSizes& sizes) {
  if (!block.fsdp.reduces_each_backward) {
    return;  // add_titan_pipelined
  }
  add_titan_all_gather(block, sizes.own, sizes.before);
  const auto layer = block.layer_weights();
  add_titan_unsharded(
      block, {.elements = sizes.own,
              .weights = sizes.own == block.parameters.layer ? std::span<const std::int64_t>(layer)
                                                             : std::span<const std::int64_t>(),
              .reshards_forward = sizes.reshards_forward});
}

void add_reduction(TitanBlock& block, const FsdpSizes& sizes) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  if (!block.fsdp.reduces_each_backward) {
    return;
  }
  rows.use_as(comm, "fsdp.previous_reduction", sizes.previous, DType::kFp32, Step::kBackwardOutput,
              sizes.previous_until,
              "n: fp32 reduce-scatter input of the block before, held until the next one");
  rows.use_as(comm, "fsdp.reduction_input", sizes.own, DType::kFp32, Step::kBackwardInput,
              Step::kBackwardInput, "n: fp32 reduce-scatter input");
}

// The layers before and behind one of that kind, whose buffers its own meet. Dense layers before
// the first with experts are of one kind: all of them as the last.
struct Neighbours {
  TitanParameters before;
  TitanParameters behind;
};

Neighbours neighbours_of(const TitanBlock& block, BlockKind kind) {
  const std::vector<LayerSpec>& layers = block.job.model.layers;
  const auto of = [&](bool is_moe) {
    return is_moe == block.is_moe ? block.parameters
                                  : titan_parameters(block.job, block.plan, is_moe);
  };
  const bool has_one = layers.size() < 2;
  switch (kind) {
    case BlockKind::kFirstLayer: return {of(block.is_moe), of(has_one || layers[1].is_moe)};
    case BlockKind::kDenseLayer: return {of(false), of(block.job.model.has_moe_layers())};
    case BlockKind::kFirstMoeLayer: return {of(false), of(true)};
    case BlockKind::kLastLayer:
      return {of(has_one ? block.is_moe : layers[layers.size() - 2].is_moe), of(block.is_moe)};
    default: return {of(block.is_moe), of(block.is_moe)};
  }
}

void add_layer_fsdp(TitanBlock& block, BlockKind kind) {
  const TitanParameters& p = block.parameters;
  const Neighbours near = neighbours_of(block, kind);
  const auto gathered_experts = [&block](const TitanParameters& of) {
    return expert_shard_size(block.job, block.plan) > 1 ? of.experts : 0;
  };
  FsdpSizes sizes{.own = p.layer,
                  .next = kind == BlockKind::kFirstLayer ? p.embedding : near.before.layer,
                  .previous = kind == BlockKind::kLastLayer ? p.head : near.behind.layer,
                  .before = kind == BlockKind::kFirstLayer ? p.embedding : near.before.layer,
                  .reshards_forward = block.fsdp.reshards_forward};
  if (block.fsdp.root_holds_ends && kind == BlockKind::kFirstLayer) {
    sizes.next = 0;  // there already
    sizes.before = p.embedding + p.head;
  } else if (block.fsdp.root_holds_ends && kind == BlockKind::kLastLayer) {
    sizes.previous = 0;  // not reduced yet
    sizes.reshards_forward =
        block.job.profile.reshard_after_forward == ReshardAfterForward::kAlways;
  }
  if (kind != BlockKind::kFirstLayer && near.before.experts > 0) {
    sizes.next += gathered_experts(near.before);
    sizes.before = gathered_experts(near.before);
  }
  if (block.groups_experts()) {
    sizes.previous_until = Step::kBackwardFc1Weight;  // the experts' come next
  }
  if (block.fsdp.is_sharded) {
    add_gathered(block, sizes);
    if (block.groups_experts()) {
      add_titan_expert_group(block, kind == BlockKind::kLastLayer);
    } else if (block.plan.ep > 1) {
      block.gather("fsdp.next_gather_output", near.behind.layer + gathered_experts(near.behind),
                   Step::kForwardInput, Step::kForwardOutput, "n: of the next block");
    }
    if (sizes.reshards_forward && block.fsdp.reduces_each_backward) {
      block.gather("fsdp.prefetched_parameters", sizes.next, Step::kBackwardOutput,
                   Step::kBackwardInput,
                   "n: all-gather output of the block whose backward is next");
    }
    add_reduction(block, sizes);
    if (!block.fsdp.reduces_each_backward) {
      add_titan_pipelined(block, sizes.own, GroupEnd::kLayer);
      if (block.fsdp.reshards_forward) {
        const bool is_first = kind == BlockKind::kFirstLayer;
        add_titan_gathered_in_turn(block, {.elements = sizes.own, .next = is_first ? 0 : p.layer});
      }
    }
  }
  block.rows.rows.push_back(titan_gradient(block, sizes.own, Step::kWeight));
}

}  // namespace

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

// Reduced gradients lie in one tensor a block, others in one a parameter.
void split(BlockRow& row, const std::vector<std::int64_t>& weights) {
  row.bytes = 0;
  for (const std::int64_t weight : weights) {
    row.parts.push_back(round_up(weight * bytes_of(DType::kFp32), kAllocatorRounding));
    row.bytes += row.parts.back();
  }
}

}  // namespace

BlockRow titan_gradient(const TitanBlock& block, std::int64_t elements, Step born) {
  BlockRow row = shared_gradient(block, elements, dense_shard_size(block.job, block.plan), born);
  if (elements == block.parameters.layer && row.elements == elements) {
    split(row, block.layer_weights());
  }
  return row;
}

BlockRow titan_expert_gradient(const TitanBlock& block) {
  BlockRow row = shared_gradient(
      block, block.parameters.experts, expert_shard_size(block.job, block.plan),
      block.fsdp.reduces_each_backward ? Step::kBackwardRouterInput : Step::kWeight);
  if (!block.fsdp.reduces_each_backward) {
    split(row, block.expert_weights());
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

// An all-gather's output lives until the next block's has been copied out, so that at the start of
// a block there are two; its input is this rank's shard in bf16.
void add_titan_all_gather(TitanBlock& block, std::int64_t own, std::int64_t before) {
  const std::int64_t shard = dense_shard_size(block.job, block.plan);
  block.gather("fsdp.previous_all_gather", before, Step::kForwardInput, Step::kForwardInput,
               "n: output of the block before, not freed yet");
  block.gather("fsdp.all_gather_input", div_ceil(own, shard), Step::kForwardInput,
               Step::kForwardInput, "n/S: this rank's shard, cast");
  const bool experts_follow = block.groups_experts() && own == block.parameters.layer;
  block.gather("fsdp.all_gather_output", own, Step::kForwardInput,
               experts_follow ? Step::kForwardDispatch : Step::kForwardLogits,
               "n: kept until the next group has been gathered");
}

void add_titan_unsharded(TitanBlock& block, const TitanUnsharded& of) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  const auto split = [&] {
    if (!of.weights.empty()) {
      rows.split_last(of.weights);
    }
  };
  if (!of.reshards_forward) {
    rows.keep("fsdp.unsharded_parameters", of.elements, block.shape.dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = of.last_forward_use,
               .dies = Step::kBackwardNorm},
              "n: not resharded after forward");
    rows.rows.back().component = comm;
    rows.rows.back().outlives_recompute = true;
    split();
    return;
  }
  rows.use_as(comm, "fsdp.unsharded_parameters", of.elements, block.shape.dtype,
              Step::kForwardInput, of.last_forward_use, "n");
  split();
  rows.use_as(comm, "fsdp.unsharded_again", of.elements, block.shape.dtype, of.gathered_again,
              Step::kBackwardNorm, "n: gathered again for backward");
  split();
}

// What a pipeline does once a step for all microbatches of a block: gathers its parameters, and
// reduces its gradients behind the last backward of the chunk (pipelining/stage.py,
// perform_reduce_grad), when they have been added up whole. The reduce-scatter's input lives beside
// them; its output comes when they are freed, but for the last one, which a variable of
// foreach_reduce still names and only a table makes large. Under tp the embedding's gradient is
// dense, and its rows are picked before anything is dropped.
void add_titan_pipelined(TitanBlock& block, std::int64_t own, GroupEnd end) {
  RowList& rows = block.rows;
  const auto add = [&rows](Component component, std::string_view name, std::int64_t elements,
                           DType dtype, RowOf of, std::string_view formula) {
    rows.use_as(component, name, elements, dtype, Step::kWeight, Step::kWeight, formula);
    if (elements > 0) {
      rows.rows.back().of = of;
    }
  };
  const Component comm = Component::kCommunication;
  const std::int64_t share = div_ceil(own, dense_shard_size(block.job, block.plan));
  add(comm, "fsdp.unsharded_parameters", own, block.shape.dtype, RowOf::kGathered,
      "n: gathered for all microbatches of the chunk");
  if (end == GroupEnd::kRowsOfTable) {
    add(Component::kGradients, "fsdp.table_gradient_rows", own, DType::kFp32, RowOf::kReduction,
        "V/t*h: this rank's rows of the table's gradient");
    add(comm, "fsdp.unsharded_until_reduced", own, block.shape.dtype, RowOf::kReduction, "n");
  } else {
    add(comm, "fsdp.reduction_input", own, DType::kFp32, RowOf::kReduction,
        "n: fp32 reduce-scatter input");
    add(comm, "fsdp.reduction_output", end == GroupEnd::kTable ? share : 0, DType::kFp32,
        RowOf::kReduction, "n/S: of the reduce-scatter, while the table's gradient is still there");
  }
  add(Component::kGradients, "gradients.sharded", share, DType::kFp32, RowOf::kReduced,
      "n/S: output of the reduce-scatter, the parameter's gradient");
}

// Blocks of a pipeline that reshard gather for themselves in forward, and in a backward that finds
// nothing there, which leaves them gathered (set_reshard_after_backward of pipelining/stage.py).
// Forwards that gather, with a buffer, come before gradients exist; those behind a backward find
// all parameters.
void add_titan_gathered_in_turn(TitanBlock& block, const TitanInTurn& of) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  rows.use_as(comm, "fsdp.unsharded_in_turn", of.elements, block.shape.dtype, Step::kForwardInput,
              of.last_forward_use, "n: dropped after the block's forward");
  if (of.elements > 0) {
    rows.rows.back().is_not_replayed = true;
  }
  rows.use_as(comm, "fsdp.unsharded_again", of.elements, block.shape.dtype, of.gathered_again,
              kLastBackward, "n: gathered again for backward");
  if (of.elements > 0) {
    rows.rows.back().gathers = true;
  }
  block.gather("fsdp.prefetched_parameters", of.next, of.gathered_again, kLastBackward,
               "n: all-gather output of the block whose backward is next");
  if (of.next > 0) {
    rows.rows.back().gathers = true;
  }
}

FsdpPlan fsdp_plan(const Job& job, const Plan& plan) {
  const ReshardAfterForward reshard = job.profile.reshard_after_forward;
  const bool always = reshard == ReshardAfterForward::kAlways;
  return {.is_sharded = plan.zero == 3,
          .reshards_forward = always || (reshard == ReshardAfterForward::kDefault && plan.pp == 1),
          .reshards_head = always,
          .reduces_each_backward = plan.pp == 1,
          .root_holds_ends = plan.zero == 3 && job.profile.root_holds_ends};
}

bool fsdp_unties_table(const Job& job, const Plan& plan) {
  const FsdpPlan fsdp = fsdp_plan(job, plan);
  return job.model.tied_embeddings && fsdp.is_sharded && !fsdp.root_holds_ends;
}

bool splits_expert_rows(const Job& job, const Plan& plan) {
  return plan.ep > 1 && expert_shard_size(job, plan) * plan.ep > job.model.moe.num_experts;
}

std::int64_t padded_experts(const Job& job, const Plan& plan, std::int64_t elements) {
  const std::int64_t experts = div_ceil(job.model.moe.num_experts, plan.ep);
  if (plan.zero != 3 || experts == 0 || splits_expert_rows(job, plan)) {
    return elements;
  }
  return elements / experts * round_up(experts, expert_shard_size(job, plan));
}

TitanParameters titan_parameters(const Job& job, const Plan& plan, bool is_moe) {
  const std::vector<ParameterTensor> layer = layer_parameters(job.model, {.is_moe = is_moe});
  // A shared table is gathered and reduced for both ends (_fsdp_init.py, _get_managed_states).
  const std::int64_t embedding = local_elements(job, plan, embedding_parameters(job.model));
  TitanParameters parameters = {
      .embedding = embedding,
      .layer = local_elements(job, plan, layer),
      .layer_norms = 2 * job.model.hidden + (job.model.qk_norm ? 2 * job.model.head_dim : 0),
      .head = local_elements(job, plan, head_parameters(job.model)) +
              (job.model.tied_embeddings ? embedding : 0),
      .experts = 0};
  std::int64_t experts = 0;
  for (const ParameterTensor& tensor : layer) {
    experts += tensor.sharding == Sharding::kExpert ? local_elements(job, plan, tensor) : 0;
  }
  const std::int64_t padded = padded_experts(job, plan, experts);
  parameters.experts = plan.ep > 1 ? padded : 0;
  parameters.layer += (plan.ep > 1 ? 0 : padded) - experts;
  return parameters;
}

std::vector<std::int64_t> TitanBlock::latent_weights() const {
  const MlaSpec& mla = job.model.mla;
  const std::int64_t heads = job.model.num_heads;
  const std::int64_t query = heads * mla.qk_head_dim();
  std::vector<std::int64_t> weights;
  if (mla.q_lora_rank > 0) {
    weights = {shape.hidden * mla.q_lora_rank, mla.q_lora_rank, mla.q_lora_rank * query};
  } else {
    weights = {shape.hidden * query};
  }
  weights.insert(weights.end(),
                 {shape.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim), mla.kv_lora_rank,
                  mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                  heads * mla.v_head_dim * shape.hidden});
  return weights;
}

std::vector<std::int64_t> TitanBlock::ffn_weights() const {
  if (!has_experts()) {
    return std::vector<std::int64_t>(3, shape.hidden * ffn_width());
  }
  std::vector<std::int64_t> weights;
  if (!groups_experts()) {
    weights = sharded_expert_weights();
  }
  weights.push_back(shape.hidden * job.model.moe.num_experts);
  weights.insert(weights.end(), shared_width() > 0 ? 3 : 0, shape.hidden * shared_width());
  return weights;
}

// DeepSeek's blocks have their norms before what follows them.
std::vector<std::int64_t> TitanBlock::layer_weights() const {
  const std::vector<std::int64_t> ffn = ffn_weights();
  if (job.model.is_mla()) {
    std::vector<std::int64_t> weights = latent_weights();
    weights.insert(weights.end(), 2, shape.hidden);
    weights.insert(weights.end(), ffn.begin(), ffn.end());
    return weights;
  }
  const std::int64_t query = shape.hidden * shape.query_width;
  const std::int64_t key = shape.hidden * shape.key_value_width;
  std::vector<std::int64_t> weights = {query, key, key, query};
  weights.insert(weights.end(), ffn.begin(), ffn.end());
  weights.insert(weights.end(), 2, shape.hidden);
  if (job.model.qk_norm) {
    weights.insert(weights.end(), 2, job.model.head_dim);
  }
  return weights;
}

std::vector<std::int64_t> TitanBlock::sharded_expert_weights() const {
  std::vector<std::int64_t> weights = expert_weights();
  for (std::int64_t& weight : weights) { weight = padded_experts(job, plan, weight); }
  return weights;
}

std::vector<std::int64_t> TitanBlock::expert_weights() const {
  const MoeSpec& moe = job.model.moe;
  const std::int64_t width =
      div_ceil(moe.num_experts, plan.ep) * div_ceil(moe.expert_ffn, plan.etp) * shape.hidden;
  return {width, width, width};
}

namespace {

// A shared table's gradient is the head's, to which the embedding's is added.
void add_embedding_gradient(TitanBlock& block) {
  BlockRow row = titan_embedding_gradient(block);
  if (!block.job.model.tied_embeddings) {
    block.rows.rows.push_back(std::move(row));
    return;
  }
  block.rows.use_as(Component::kGradients, "gradients.added", row.elements, row.dtype, row.born,
                    Step::kBackwardInput, "n/S (n on one GPU): until it is added to the head's");
}

// nn.Embedding, sharded by rows under tp: its backward makes the dense gradient of the whole table,
// of which a rank then copies its rows.
void add_titan_embedding(TitanBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t own = block.parameters.embedding;
  const DType residual = block.is_autocast() ? DType::kFp32 : s.dtype;
  if (block.is_pipelined()) {
    rows.keep("output", block.sequence(), residual,
              {.born = Step::kForwardOutput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardOutput},
              "h*u: input of the first layer");
  } else {
    rows.use("output", block.sequence(), residual, Step::kForwardOutput, Step::kForwardOutput,
             "h*u");
  }
  rows.use("output_gradient", block.sequence(), residual, Step::kBackwardOutput,
           Step::kBackwardLogits, "h*u");
  if (block.is_autocast()) {  // the dense gradient is the parameter's own
    add_embedding_gradient(block);
    return;
  }
  // A pipeline accumulates the whole table's gradient and picks its rows at the end.
  const bool picks_rows = block.plan.tp > 1 && block.fsdp.reduces_each_backward;
  rows.use("table_gradient", padded_vocab(block.job, block.plan) * s.hidden, s.dtype,
           Step::kBackwardLogits, picks_rows ? Step::kBackwardNorm : Step::kBackwardInput,
           "V*h: dense, of the whole table");
  rows.use("table_gradient_rows", picks_rows ? own : 0, s.dtype, Step::kBackwardNorm,
           Step::kBackwardInput, "V/t*h: this rank's rows");
  const bool has_root = block.fsdp.root_holds_ends;
  const FsdpSizes sizes{.own = own + (has_root ? block.parameters.head : 0),
                        .next = 0,
                        .previous = block.parameters.layer,
                        .before = 0,
                        .reshards_forward = block.fsdp.reshards_forward && !has_root};
  add_gathered(block, sizes);
  add_reduction(block, sizes);
  if (!block.fsdp.reduces_each_backward) {
    add_titan_pipelined(block, own, block.plan.tp > 1 ? GroupEnd::kRowsOfTable : GroupEnd::kTable);
  }
  add_embedding_gradient(block);
}

}  // namespace

TitanBlock titan_block(const Job& job, const Plan& plan, bool is_moe) {
  return {.job = job,
          .plan = plan,
          .is_moe = is_moe,
          .shape = block_shape(job, plan),
          .fsdp = fsdp_plan(job, plan),
          .parameters = titan_parameters(job, plan, is_moe)};
}

bool is_moe_layer(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kDenseLayer: return false;
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer: return true;
    case BlockKind::kEmbedding:
    case BlockKind::kFirstLayer: return job.model.layers.front().is_moe;
    default: return job.model.layers.back().is_moe;
  }
}

std::vector<TitanLayers> titan_layers(const Job& job, const Plan& plan, const StageLayout& stage) {
  std::vector<TitanLayers> layers;
  for (const bool is_moe : {false, true}) {
    std::int64_t count = 0;
    for (const BlockKind kind :
         {BlockKind::kFirstLayer, BlockKind::kDenseLayer, BlockKind::kFirstMoeLayer,
          BlockKind::kMoeLayer, BlockKind::kLastLayer}) {
      count += is_moe_layer(job, kind) == is_moe ? count_blocks(stage, kind) : 0;
    }
    if (count > 0) {
      layers.push_back({.block = titan_block(job, plan, is_moe), .count = count});
    }
  }
  return layers;
}

std::vector<BlockRow> torchtitan_rows(const Job& job, const Plan& plan, BlockKind kind) {
  TitanBlock block = titan_block(job, plan, is_moe_layer(job, kind));
  switch (kind) {
    case BlockKind::kEmbedding: add_titan_embedding(block); break;
    case BlockKind::kHead: add_titan_head(block); break;
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss: break;  // nanotron's
    case BlockKind::kFirstLayer:
    case BlockKind::kDenseLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer:
    case BlockKind::kLastLayer:
      if (job.model.is_mla()) {
        add_titan_latent_attention(block);
      } else {
        add_titan_attention(block, kind);
      }
      if (block.has_experts()) {
        add_titan_moe(block);
      } else {
        add_titan_ffn(block);
      }
      add_layer_fsdp(block, kind);
      break;
    case BlockKind::kSentOutput:
      block.rows.keep("output", block.sequence(), block.shape.dtype,
                      {.born = Step::kForwardOutput,
                       .last_forward_use = Step::kForwardOutput,
                       .dies = Step::kWeight},
                      "h*u: fwd_cache of pipelining/stage.py, to the end of the chunk's backward");
      break;
    case BlockKind::kMtp: break;
  }
  return std::move(block.rows.rows);
}

bool has_torchtitan_block(const Job& job, BlockKind kind) {
  const bool has_both = job.model.has_dense_layers() && job.model.has_moe_layers();
  return kind == BlockKind::kFirstLayer || kind == BlockKind::kLastLayer ||
         (kind == BlockKind::kFirstMoeLayer && has_both);
}

}  // namespace shardplan
