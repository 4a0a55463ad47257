// The table that puts the blocks of Megatron with Transformer Engine together.
#include "estimator/frameworks/megatron/blocks.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/megatron/blocks/attention.h"
#include "estimator/frameworks/megatron/blocks/combined.h"
#include "estimator/frameworks/megatron/blocks/ends.h"
#include "estimator/frameworks/megatron/blocks/ffn.h"
#include "estimator/frameworks/megatron/blocks/layer_ends.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/mixers/delta_net.h"
#include "estimator/frameworks/megatron/mixers/mamba.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/frameworks/pieces/seen_by_layer.h"
#include "estimator/ledger/layer_blocks.h"

namespace shardplan::megatron {
namespace {

void add_mixer(MegatronBlock& block) {
  switch (block.layer.mixer) {
    case MixerKind::kNone: return;
    case MixerKind::kGatedDelta: return add_delta_net(block);
    case MixerKind::kMamba2: return add_mamba(block);
    default: break;
  }
  add_attention(block);
  add_context_parallel(block);
}

}  // namespace

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind) {
  RowList rows(1);
  MegatronBlock block{.job = job,
                      .plan = plan,
                      .shape = block_shape(job, plan),
                      .layer = layer_of(job, kind),
                      .is_moe = is_mixture(job, kind),
                      .rows = rows,
                      .adapters = adapters_of(job, plan, kind)};
  if (kind == BlockKind::kEmbedding) {
    add_embedding(block);
    return std::move(rows.rows);
  }
  if (kind == BlockKind::kHead) {
    add_head(block);
    const HeadBucket bucket = head_bucket(job, plan);
    rows.use_as(Component::kCommunication, "zero.gradients", bucket.elements,
                fsdp_gradient_dtype(plan), bucket.born, Step::kBackwardInput,
                "Megatron-FSDP's bucket of the head, before its reduce-scatter");
    return std::move(rows.rows);
  }
  if (kind == BlockKind::kSentOutput) {
    rows.keep("sent_output", block.shape.hidden * block.shape.sharded_tokens, block.shape.dtype,
              {.born = Step::kForwardOutput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardOutput},
              "h*u: deallocate_pipeline_outputs is off");
    return std::move(rows.rows);
  }
  add_layer_input(block);
  add_mixer(block);
  if (block.is_moe) {
    add_moe(block);
  } else if (block.layer.has_ffn) {
    add_dense_ffn(block);
  }
  add_other_microbatch(block);
  if (kind == BlockKind::kMtp) {
    add_mtp_projection(block);
    add_head(block);
  }
  return std::move(rows.rows);
}

// The all-to-all exchanges as many rows whatever their number of ranks; what counts is whether
// there are several, and whether a rank has several experts to sort them by; how many, where they
// take turns or each pads its rows. The local layers share a norm in front of either kind of FFN.
SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind) {
  const FrameworkProfile& profile = job.profile;
  const bool is_local = profile.memory_model == MemoryModel::kMegatronLocal;
  SeenByBlock seen =
      seen_by_layer(job, plan, kind, separate_norms(job, is_mixture(job, kind)), is_local);
  seen.gradients = fuses_weight_gradients(job, plan) ? 0 : 1;
  // A layer that gathers its input keeps it in a checkpoint alone.
  if (plan.recompute.granularity == RecomputeGranularity::kFull &&
      gathers_in_front(job, plan, layer_of(job, kind))) {
    seen.recompute.granularity = RecomputeGranularity::kFull;
  }
  const bool sees_number = is_local || profile.moe_dispatcher != MoeDispatcher::kAllToAll ||
                           plan.precision == Precision::kFp8 || !profile.moe_grouped_gemm ||
                           seen.gradients > 0;
  if (!sees_number && plan.ep < job.model.moe.num_experts) {
    seen.ep = std::min<std::int64_t>(seen.ep, 2);
  }
  return seen;
}

}  // namespace shardplan::megatron
