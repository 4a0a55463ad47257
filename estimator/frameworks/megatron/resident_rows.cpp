#include "estimator/frameworks/megatron/resident_rows.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/megatron/allocator_tails.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/shared_streams.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/megatron/user_buffers.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/frameworks/pieces/seen_by_layer.h"
#include "estimator/plan/tower.h"
#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

struct ResidentRows {
  const Job& job;
  const Plan& plan;
  const StageLayout& stage;
  const StageTensors& tensors;
  std::vector<StateRow> rows;

  bool is_local() const { return job.profile.memory_model == MemoryModel::kMegatronLocal; }
  void add(const StateRow& row) { rows.push_back(row); }
};

// Mixtures whose shared experts have a gate and a stream of their own.
std::int64_t gates_on_streams(const ResidentRows& state) {
  if (!has_shared_streams(state.job) || !state.job.model.moe.shared_gate) {
    return 0;
  }
  return num_shared_streams(count_mixtures(state.job, state.stage));
}

// cuBLAS workspaces stay. Transformer Engine makes one of its own, of core's own layers for the
// router alone (core/transformer/moe/moe_utils.py, te_general_gemm), and four more for grouped
// products (pytorch/module/base.py, get_workspace, get_multi_stream_cublas_workspace). torch makes
// one for each handle, and handles belong to a thread: products outside Transformer Engine, those
// of the head, the router, attention that saves its probabilities and core's own layers, run
// forward in the main thread and backward in autograd's (aten/src/ATen/cuda/CublasHandlePool.cpp),
// and those of Muon's step in the main thread. A handle has one for each stream, so that gates of
// shared experts that run on streams of their own have two a layer (data/measured/README.md,
// shared_experts_h200).
void add_cublas_workspaces(ResidentRows& state) {
  const bool is_moe = count_mixtures(state.job, state.stage) > 0;
  const bool groups = is_moe && state.job.profile.moe_grouped_gemm;
  const bool is_local = state.is_local();
  const bool torch_multiplies = is_local || is_moe || saves_probabilities(state.job, state.plan) ||
                                count_blocks(state.stage, BlockKind::kHead) > 0;
  // torch's default is 32 MiB on compute capability 9.0 and ":4096:2:16:8" KiB elsewhere
  // (parseChosenWorkspaceSize); Transformer Engine's is 32 MiB from 9.0 on and 4 MiB before.
  constexpr std::int64_t kSmallTorchBytes = std::int64_t{4096 * 2 + 16 * 8} * kKiB;
  constexpr std::int64_t kSmallTeBytes = 4 * kMiB;
  const std::int64_t large = state.job.profile.fixed_workspace_bytes;
  const std::int64_t capability = state.job.cluster.gpu.compute_capability;
  const bool is_known = capability > 0;
  const bool torch_is_small = is_known && capability != 90;
  const bool te_is_small = is_known && capability < 90;
  constexpr std::int64_t kGroupedStreams = 4;
  const std::int64_t chosen = state.job.profile.torch_workspace_bytes;
  const std::int64_t by_default = torch_is_small ? std::min(large, kSmallTorchBytes) : large;
  state.add({.component = Component::kWorkspace,
             .name = "cublas_workspace",
             .elements = chosen > 0 ? chosen : by_default,
             .dtype = DType::kBool,
             .copies = (torch_multiplies ? 2 : (uses_muon(state.job) ? 1 : 0)) +
                       2 * gates_on_streams(state),
             .formula = "torch's, one for the main thread and one for autograd's",
             .origin = Origin::kDocumented,
             .made_by = is_local ? MadeBy::kFirstProducts : MadeBy::kPhase});
  const std::int64_t own = has_user_buffers(state.job, state.plan) ? kUserBufferStreams : 1;
  state.add({.component = Component::kWorkspace,
             .name = "transformer_engine_workspace",
             .elements = te_is_small ? std::min(large, kSmallTeBytes) : large,
             .dtype = DType::kBool,
             .copies = is_local || (has_local_layers(state.job) && !is_moe)
                           ? 0
                           : own + (groups ? kGroupedStreams : 0),
             .formula = "Transformer Engine's, one for each stream of pieces beside userbuffers, "
                        "and one for each stream of grouped products",
             .origin = Origin::kDocumented});
}

// Each layer of latent attention has a YarnRotaryEmbedding (core/transformer/
// multi_latent_attention.py), which the fused kernels ask for cosines and sines of the whole
// sequence in bf16; the angles in fp32 stay in a cache of 32 (core/models/common/embeddings/
// yarn_rotary_pos_embedding.py, get_cached_cos_sin, forward).
void add_rotary_tables(ResidentRows& state) {
  constexpr std::int64_t kCachedAngles = 32;
  const Job& job = state.job;
  std::int64_t layers = 0;
  for (const BlockKind kind : {BlockKind::kDenseLayer, BlockKind::kMoeLayer, BlockKind::kMtp}) {
    layers += job.model.is_mla() && !state.is_local() ? count_blocks(state.stage, kind) : 0;
  }
  state.add({.component = Component::kWorkspace,
             .name = "rotary_tables",
             .elements = (layers + std::min(layers, kCachedAngles)) * job.sequence_length *
                         job.model.mla.qk_rope_head_dim,
             .dtype = DType::kFp32,
             .formula = "2*dr*s fp32 a layer: cosines and sines in bf16, angles in fp32"});
}

void add_resident(ResidentRows& state) {
  add_cublas_workspaces(state);
  add_rotary_tables(state);
  state.add({.component = Component::kWorkspace,
             .name = "small_tensors",
             .elements = state.job.profile.fixed_allocated_bytes,
             .dtype = DType::kBool,
             .formula = "fixed_allocated_bytes of the profile",
             .origin = Origin::kFitted});
}

// Blocks of the caching allocator that are larger than the tensors in them.
void add_allocator_tails(ResidentRows& state) {
  if (!state.is_local() && !has_plain_optimizer(state.job, state.plan)) {
    return;
  }
  const AllocatorTails tails = allocator_tails(state.job, state.plan, state.stage, state.tensors);
  state.add({.component = Component::kWorkspace,
             .name = kAllocatorTailsRow,
             .elements = tails.start_up_bytes,
             .dtype = DType::kBool,
             .first = Phase::kStartUp,
             .formula = "ends of blocks too small to split off, of weights and main parameters"});
  state.add({.component = Component::kWorkspace,
             .name = kOptimizerTailsRow,
             .elements = tails.optimizer_bytes,
             .dtype = DType::kBool,
             .made_by_first_step = true,
             .formula = "ends of blocks too small to split off, of the optimizer's moments"});
  state.add({.component = Component::kWorkspace,
             .name = kStepTailsRow,
             .elements = tails.step_bytes,
             .dtype = DType::kBool,
             .first = Phase::kOptimizer,
             .last = Phase::kOptimizer,
             .formula = "ends of blocks too small to split off, of the step's temporary"});
}

// Megatron-SWIFT's classes have the tower of Hugging Face's on every rank of the first stage, which
// its buckets leave out as long as it is frozen (mcore-bridge 1.6.5 model/mm_gpt_model.py
// MultimodalGPTModel, model/mm_gpts/utils.py HuggingFaceVit).
void add_tower(ResidentRows& state) {
  const bool is_here = state.job.profile.vision_tower != TowerUse::kAbsent &&
                       count_blocks(state.stage, BlockKind::kEmbedding) > 0;
  state.add(
      {.component = Component::kParameters,
       .name = "vision_tower",
       .elements = is_here ? tower_elements(state.job.model.tower, state.job.model.hidden) : 0,
       .dtype = DType::kBf16,
       .first = Phase::kStartUp,
       .formula = "of the tower for pictures or sound, whole and frozen"});
}

}  // namespace

std::vector<StateRow> resident_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                    const StageTensors& tensors) {
  ResidentRows state{.job = job, .plan = plan, .stage = stage, .tensors = tensors, .rows = {}};
  add_resident(state);
  add_allocator_tails(state);
  add_tower(state);
  return std::move(state.rows);
}

}  // namespace shardplan::megatron
