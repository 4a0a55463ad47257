// What a torchtitan rank holds besides activations (data/frameworks/torchtitan.md): fp32
// parameters, sharded by FSDP2 or whole under autocast, on one GPU or on all of DDP, fused AdamW,
// pipeline buffers.
#include "estimator/frameworks/torchtitan/state.h"

#include <algorithm>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/parameters.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::torchtitan {
namespace {

struct TitanState {
  const Job& job;
  const Plan& plan;
  FsdpPlan fsdp;
  TitanBlock ends;  // of the ends alone
  std::vector<TitanLayers> layers;
  std::int64_t elements = 0;  // of the stage in fp32, unsharded
  std::int64_t experts = 0;   // beside these
  std::int64_t in_bf16 = 0;   // of layers whose parameters are, a rank's share
  std::int64_t shard = 1;
  std::int64_t expert_shard = 1;
  std::int64_t block_gradients = 0;  // fp32 as the blocks make them, each rounded by itself
  std::int64_t bf16_gradients = 0;
  StateRowList list = {.alignment_bytes = kAllocatorRounding};

  std::int64_t share(std::int64_t count) const {
    return fsdp.is_sharded ? div_ceil(count, shard) : count;
  }
  std::int64_t expert_share(std::int64_t count) const {
    return fsdp.is_sharded ? div_ceil(count, expert_shard) : count;
  }
  void add(const StateRow& row) { list.add(row); }
};

void add_parameters(TitanState& state) {
  const std::int64_t share = state.share(state.elements) + state.expert_share(state.experts);
  state.add({.component = Component::kParameters,
             .name = "parameters",
             .elements = share,
             .dtype = DType::kFp32,
             .first = Phase::kStartUp,
             .formula = "N/S (N on one GPU): fp32",
             .is_split = true});
  state.add({.component = Component::kParameters,
             .name = "fsdp.untied_table",
             .elements = fsdp_unties_table(state.job, state.plan)
                             ? state.share(state.ends.parameters.embedding)
                             : 0,
             .dtype = DType::kFp32,
             .first = Phase::kStartUp,
             .last = Phase::kBuilt,
             .formula = "V*h/S: of the head's own group, until the first forward meets the "
                        "embedding's in its place"});
  const bool by_blocks = state.fsdp.reduces_each_backward;
  state.add(
      {.component = Component::kGradients,
       .name = "gradients",
       .elements = by_blocks ? state.block_gradients : share,
       .dtype = DType::kFp32,
       .first = by_blocks ? Phase::kReduction : Phase::kOptimizer,
       .formula = "N/S: fp32; freed by zero_grad when the next step begins, then made block "
                  "by block",
       .is_split = true,
       .stream = state.fsdp.is_sharded ? AllocationStream::kReduce : AllocationStream::kCompute});
  const auto add_moments = [&](std::string_view first, std::string_view second,
                               std::int64_t elements, DType dtype) {
    for (const std::string_view name : {first, second}) {
      state.add({.component = Component::kOptimizer,
                 .name = name,
                 .elements = elements,
                 .dtype = dtype,
                 .made_by_first_step = true,
                 .formula = "N/S: fused AdamW, made by the first optimizer step"});
    }
  };
  add_moments("optimizer.exp_avg", "optimizer.exp_avg_sq", share, DType::kFp32);
  add_moments("optimizer.exp_avg_of_layers", "optimizer.exp_avg_sq_of_layers", state.in_bf16,
              DType::kBf16);
}

// GPT-OSS's layers. AdamW takes gradients and moments in the dtype of a parameter.
void add_bf16_parameters(TitanState& state) {
  state.add({.component = Component::kParameters,
             .name = "parameters.of_layers",
             .elements = state.in_bf16,
             .dtype = DType::kBf16,
             .first = Phase::kStartUp,
             .formula = "N/S: bf16, of the layers (models/gpt_oss/model/model.py, GptOssModel)",
             .is_split = true});
  state.add({.component = Component::kGradients,
             .name = "gradients.of_layers",
             .elements = state.bf16_gradients,
             .dtype = DType::kBf16,
             .first = Phase::kReduction,
             .formula = "N/S: bf16; freed by zero_grad when the next step begins, then made block "
                        "by block",
             .is_split = true,
             .stream = AllocationStream::kReduce});
}

// Elements of the gradients as the blocks make them, each filling whole allocator blocks: of
// layers, in their dtype.
std::int64_t gradients_of_layers(const TitanState& state) {
  std::int64_t sum = 0;
  for (const TitanLayers& layers : state.layers) {
    const TitanParameters& p = layers.block.parameters;
    const std::int64_t experts = p.experts > 0 ? titan_expert_gradient(layers.block).bytes : 0;
    sum += layers.count * (titan_gradient(layers.block, p.layer, Step::kWeight).bytes + experts);
  }
  return sum / bytes_of(layer_parameter_dtype(state.job.model));
}

// Likewise of the ends, in fp32.
std::int64_t gradients_of_ends(const TitanState& state, const StageLayout& stage) {
  const auto bytes = [](const TitanBlock& block, std::int64_t elements) {
    return titan_gradient(block, elements, Step::kWeight).bytes;
  };
  return ((state.job.model.tied_embeddings ? 0 : 1) * count_blocks(stage, BlockKind::kEmbedding) *
              titan_embedding_gradient(state.ends).bytes +
          count_blocks(stage, BlockKind::kHead) * bytes(state.ends, state.ends.parameters.head)) /
         bytes_of(DType::kFp32);
}

// Of a model whose layers are bf16, fp32 are the ends alone.
void take_layers_in_bf16(TitanState& state, const StageLayout& stage) {
  const TitanParameters& p = state.ends.parameters;
  state.elements = count_blocks(stage, BlockKind::kEmbedding) * p.embedding +
                   count_blocks(stage, BlockKind::kHead) * p.head;
  state.experts = 0;
  for (const auto& [block, count] : state.layers) {
    state.in_bf16 += count * (state.share(block.parameters.layer) +
                              state.expert_share(block.parameters.experts));
  }
  state.bf16_gradients = gradients_of_layers(state);
}

// replicate() makes them when the first forward begins (torch/distributed/_composable/replicate.py,
// lazy_init).
void add_buckets(TitanState& state) {
  state.add({.component = Component::kCommunication,
             .name = kBucketsRow,
             .elements = replicates(state.job, state.plan) ? state.elements + state.experts : 0,
             .dtype = DType::kFp32,
             .formula = kBucketsFormula});
}

// Under autocast and recompute the casts of a block live in autocast's cache, to the end of
// forward; without recompute the graph holds them (rows of the blocks).
void add_forward_casts(TitanState& state) {
  const Recompute& recompute = state.plan.recompute;
  const bool recomputes =
      recompute.granularity != RecomputeGranularity::kNone && !compiles_layers(state.job.profile);
  std::int64_t casts = 0;
  for (const TitanLayers& layers : state.layers) {
    const TitanBlock& block = layers.block;
    const std::int64_t uncached = block.has_experts() ? 3 * block.expert_weights().front() : 0;
    const bool half = recompute.policy == "every_second_layer";
    casts += (half ? layers.count / 2 : layers.count) *
             (block.parameters.layer - block.parameters.layer_norms - uncached);
  }
  state.add({.component = Component::kParameters,
             .name = kWeightCastsRow,
             .elements = !state.fsdp.is_sharded && recomputes ? casts : 0,
             .dtype = DType::kBf16,
             .first = Phase::kForward,
             .last = Phase::kForward,
             .formula = "N: bf16 copies of the layers' weights in autocast's cache",
             .is_split = true});
}

// The root's gradients wait for the last backward.
void add_root_gradient(TitanState& state, bool has_head) {
  const bool waits = state.fsdp.root_holds_ends && state.fsdp.reduces_each_backward && has_head;
  state.add({.component = Component::kGradients,
             .name = "fsdp.root_gradient",
             .elements = waits ? state.ends.parameters.head : 0,
             .dtype = DType::kBf16,
             .first = Phase::kBackward,
             .last = Phase::kBackward,
             .formula = "n: of final norm and head, unsharded until the embedding's is there"});
}

void add_resident(TitanState& state, std::int64_t ends) {
  std::int64_t tensors = ends;
  for (const auto& [block, count] : state.layers) {
    tensors += count * (std::ssize(block.layer_weights()) +
                        (block.groups_experts() ? std::ssize(block.expert_weights()) : 0));
  }
  state.add({.component = Component::kOptimizer,
             .name = "optimizer.step",
             .elements = tensors * kAllocatorRounding,
             .dtype = DType::kBool,
             .made_by_first_step = true,
             .formula = "one number a tensor, 512 bytes in the allocator"});
  state.add({.component = Component::kWorkspace,
             .name = kThreadWorkspacesRow,
             .elements = state.job.profile.fixed_workspace_bytes,
             .dtype = DType::kBool,
             .copies = 2,
             .formula = "one for forward, one for autograd's thread"});
  // cuBLASLt's, where products add a bias (ATen/cuda/CUDABlas.cpp, gemm_and_bias).
  const bool replays = state.plan.recompute.granularity != RecomputeGranularity::kNone;
  state.add({.component = Component::kWorkspace,
             .name = "workspace.biased_products",
             .elements = is_gpt_oss(state.job.model) ? kMiB : 0,
             .dtype = DType::kBool,
             .copies = replays ? 2 : 1,
             .formula = "one for forward, one for autograd's thread where it replays"});
}

// What the allocator counts beyond parameters and moments, each in a segment of its own: the rest
// of a segment that is too small to split off (c10/cuda/CUDACachingAllocator.cpp,
// get_allocation_size and should_split).
void add_block_ends(TitanState& state, const StageLayout& stage) {
  constexpr std::int64_t kSegmentOfOne = 10 * kMiB;  // kMinLargeAlloc
  constexpr std::int64_t kLargestRest = kMiB;        // kSmallSize
  const TitanParameters& p = state.ends.parameters;
  const auto end_of_share = [](std::int64_t elements, DType dtype) {
    const std::int64_t bytes = round_up(elements * bytes_of(dtype), kAllocatorRounding);
    const std::int64_t rest = segment_bytes(bytes) - bytes;
    return bytes >= kSegmentOfOne && rest <= kLargestRest ? rest : 0;
  };
  const auto end_of = [&](std::int64_t elements) {
    return end_of_share(state.share(elements), DType::kFp32);
  };
  std::int64_t ends = count_blocks(stage, BlockKind::kEmbedding) * end_of(p.embedding) +
                      (state.job.model.tied_embeddings ? 0 : 1) *
                          count_blocks(stage, BlockKind::kHead) * end_of(p.embedding);
  for (const auto& [block, count] : state.layers) {
    const DType dtype = block.parameter_dtype();
    for (const std::int64_t weight : block.layer_weights()) {
      ends += count * end_of_share(state.share(weight), dtype);
    }
    if (!block.groups_experts()) {
      continue;
    }
    for (const std::int64_t weight : block.sharded_expert_weights()) {
      ends += count * end_of_share(state.expert_share(weight), dtype);
    }
  }
  state.add({.component = Component::kWorkspace,
             .name = kAllocatorTailsRow,
             .elements = ends,
             .dtype = DType::kBool,
             .first = Phase::kStartUp,
             .formula = "ends of segments too small to split off, of parameters"});
  state.add({.component = Component::kWorkspace,
             .name = kOptimizerTailsRow,
             .elements = 2 * ends,
             .dtype = DType::kBool,
             .made_by_first_step = true,
             .formula = "ends of segments too small to split off, of both moments"});
}

std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors) {
  TitanState state{.job = job,
                   .plan = plan,
                   .fsdp = fsdp_plan(job, plan),
                   .ends = titan_block(job, plan, false),
                   .layers = titan_layers(job, plan, stage),
                   .elements = tensors.dense,
                   .experts = padded_experts(job, plan, tensors.expert),
                   .shard = dense_shard_size(job, plan),
                   .expert_shard = expert_shard_size(job, plan),
                   .block_gradients = 0};
  const bool has_embedding = count_blocks(stage, BlockKind::kEmbedding) > 0;
  state.block_gradients = gradients_of_ends(state, stage);
  if (layer_parameter_dtype(job.model) == DType::kBf16) {
    take_layers_in_bf16(state, stage);
  } else {
    state.block_gradients += gradients_of_layers(state);
  }
  add_parameters(state);
  add_bf16_parameters(state);
  add_buckets(state);
  add_forward_casts(state);
  add_root_gradient(state, stage.ends.has_head);
  const std::int64_t tied = job.model.tied_embeddings ? 1 : 0;
  add_resident(state, (has_embedding ? 1 - tied : 0) + (stage.ends.has_head ? 2 : 0));
  add_block_ends(state, stage);
  return std::move(state.list.rows);
}

// Most that FSDP2's gathers hold at once: two outputs, of the largest blocks that follow each
// other, and an input.
std::int64_t side_stream_bytes(const Job& job, const Plan& plan) {
  if (!fsdp_plan(job, plan).is_sharded) {
    return 0;
  }
  std::int64_t most = 0;
  for (const bool is_moe : {false, true}) {
    if (is_moe ? job.model.has_moe_layers() : job.model.has_dense_layers()) {
      const TitanParameters p = titan_parameters(job, plan, is_moe);
      most = std::max(most, std::max(p.embedding, p.head) + p.layer + p.experts);
    }
  }
  return 2 * most * bytes_of(DType::kBf16);
}

}  // namespace

StageState state_of_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& tensors, std::optional<std::int64_t> /*data_rank*/) {
  StageState state;
  state.rows = state_rows(job, plan, stage, tensors);
  state.bytes.side_streams = side_stream_bytes(job, plan);
  return state;
}

namespace {

// torch/nn/attention/flex_attention.py, BlockMask of one sequence and head: counts and indices of
// blocks that are partly and fully seen, by queries and by keys.
std::int64_t block_mask_elements(std::int64_t sequence_length) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t blocks = div_ceil(sequence_length, kBlock);
  return 4 * blocks * (blocks + 1);
}

}  // namespace

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  const BlockShape shape = block_shape(job, plan);
  const std::int64_t buffers =
      plan.pp > 1 ? num_microbatches(job, plan) * (ends.receiving_chunks + ends.sending_chunks) : 0;
  SequenceRows rows = {
      {{.component = Component::kCommunication,
        .name = "pipeline.receive_buffers",
        .elements = buffers > 0 ? shape.hidden * shape.sharded_tokens : 0,
        .dtype = shape.dtype,
        .copies = buffers,
        .formula = "h*u: one a microbatch for every input and output gradient that a chunk "
                   "receives (pipelining/stage.py, _prepare_forward_infra)"},
       {.component = Component::kWorkspace,
        .name = "rotary_table",
        .elements = rotary_table_elements(job),
        .dtype = DType::kFp32,
        .copies = plan.vpp,
        .first = Phase::kStartUp,
        .formula = "s*d: complex64 for half the head (Qwen 3: 2*s*d, cosines and sines), one a "
                   "model part"},
       {.component = Component::kWorkspace,
        .name = "token_ids",
        .elements = 2 * job.sequence_length * plan.micro_batch,
        .dtype = DType::kInt64,
        .formula = "2*s*b: inputs and labels, 8 bytes"},
       {.component = Component::kWorkspace,
        .name = "block_masks",
        .elements = is_gpt_oss(job.model) ? block_mask_elements(job.sequence_length) : 0,
        .dtype = DType::kInt32,
        .copies = 2,
        .formula = "4*(s/128)*(s/128+1): which blocks of keys a block of queries sees, and the "
                   "other way round; without a window and with it"},
       {.component = Component::kActivations,
        .name = "pipeline.last_logits",
        .elements = plan.pp > 1 && !runs_action_list(plan) && ends.has_head
                        ? shape.local_vocab * shape.tokens
                        : 0,
        .dtype = shape.dtype,
        .first = plan.schedule == Schedule::kGpipe ? Phase::kReduction : Phase::kForward,
        .last = Phase::kReduction,
        .formula = "V*T/t: output of the last microbatch, held by the schedule"},
       {.component = Component::kCommunication,
        .name = "pipeline.sent_gradient",
        .elements = plan.pp > 1 && !runs_action_list(plan) && ends.receiving_chunks > 0
                        ? shape.hidden * shape.sharded_tokens
                        : 0,
        .dtype = shape.dtype,
        .first = num_microbatches(job, plan) > 1 ? Phase::kForward : Phase::kReduction,
        .last = Phase::kReduction,
        .formula = "h*u: of the microbatch before, in the schedule's list of sends until the next"},
       {}}};
  return sized(rows, kAllocatorRounding);
}

}  // namespace shardplan::torchtitan
