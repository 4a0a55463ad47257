// Mixture of experts under Megatron-core's local spec: top-k router with auxiliary loss, all-to-all
// dispatcher without fused permutation, experts one after another (SequentialMLP). Letters in
// block_rows.h; R = topk*u rows leave this rank, G rows reach its experts, e experts per rank.
#include "estimator/frameworks/megatron/blocks/local_moe.h"

#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/blocks/local_layer.h"

namespace shardplan::megatron {
namespace {

struct ExpertRows {
  std::int64_t local = 0;       // R
  std::int64_t received = 0;    // R times the imbalance
  std::int64_t gathered = 0;    // G: after the gather over expert tensor parallelism
  std::int64_t one_expert = 0;  // of G, of one expert
  std::int64_t experts = 1;     // on this rank
  std::int64_t width = 0;       // f_e / et
  bool replays = false;         // recompute of the whole MoE part
};

ExpertRows expert_rows(const MegatronBlock& block) {
  const MoeSpec& moe = block.job.model.moe;
  ExpertRows rows;
  rows.local = block.shape.sharded_tokens * moe.topk;
  rows.received = scaled(rows.local, block.job.profile.moe_imbalance_factor);
  rows.gathered = rows.received * block.plan.etp;
  rows.experts = div_ceil(moe.num_experts, block.plan.ep);
  rows.one_expert = div_ceil(rows.gathered, rows.experts);
  rows.width = div_ceil(moe.expert_ffn, block.plan.etp);
  rows.replays = block.selective() && block.recomputed().moe;
  return rows;
}

// moe_utils.py, topk_routing_with_score_function, compute_routing_scores_for_aux_loss, permute:
// what indexing and softmax save.
void add_router(MegatronBlock& block, const ExpertRows& moe) {
  const std::int64_t tokens = block.shape.sharded_tokens;
  const std::int64_t topk = block.job.model.moe.topk;
  const std::int64_t experts = block.job.model.moe.num_experts;
  const Life life{.born = Step::kForwardFfnNorm,
                  .last_forward_use = Step::kForwardCombine,
                  .dies = Step::kBackwardFfnNorm};
  const auto keep = [&](std::string_view name, std::int64_t elements, DType dtype,
                        std::string_view formula) {
    keep_or_recompute(block, moe.replays, Step::kBackwardCombine, name, elements, dtype, life,
                      formula);
  };
  keep("router.top_indices", topk * tokens, DType::kInt64, "topk*u: chosen experts");
  keep("router.top_scores", topk * tokens, DType::kFp32, "topk*u: softmax of the chosen logits");
  keep("router.aux_scores", experts * tokens, DType::kFp32,
       "E*u: softmax of all logits, for the auxiliary loss");
  keep("router.map", experts * tokens, DType::kBool, "E*u: tokens to experts, transposed");
  keep("router.sorted_indices", topk * tokens, DType::kInt64, "topk*u: token of every row");
  keep("router.row_probabilities", moe.gathered, block.shape.dtype,
       "G: probability of every row, saved by the weighted activation");
}

// MoELayer.forward holds every stage of the dispatched tokens until the outputs are combined.
void add_dispatch_forward(MegatronBlock& block, const ExpertRows& moe) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool exchanges = block.plan.ep > 1;
  const bool gathers = block.plan.etp > 1;
  const bool sorts = moe.experts > 1;
  const Component comm = Component::kCommunication;
  rows.use("experts.permuted_tokens", exchanges || gathers || sorts ? s.hidden * moe.local : 0,
           s.dtype, Step::kForwardDispatch, Step::kForwardCombine,
           "h*R: copies by expert, held by the layer's forward");
  rows.use_as(comm, "experts.received_tokens",
              exchanges && (gathers || sorts) ? s.hidden * moe.received : 0, s.dtype,
              Step::kForwardDispatch, Step::kForwardCombine,
              "h*R*I: after the all-to-all, held by the layer's forward");
  keep_or_recompute(block, moe.replays, Step::kBackwardCombine, "experts.fc1_input",
                    s.hidden * moe.gathered, s.dtype,
                    {.born = Step::kForwardDispatch,
                     .last_forward_use = Step::kForwardCombine,
                     .dies = Step::kBackwardFc1},
                    "h*G: tokens in expert order; each expert saves its part, a view");
  rows.use("experts.fc2_outputs", s.hidden * moe.gathered, s.dtype, Step::kForwardFc2,
           Step::kForwardUnsort, "h*G: outputs of all experts, in a list");
  rows.use("experts.joined_output", sorts ? s.hidden * moe.gathered : 0, s.dtype,
           Step::kForwardUnsort, Step::kForwardUnsort, "h*G: the list as one tensor");
  rows.use("experts.unsorted_output", s.hidden * moe.received, s.dtype, Step::kForwardCombine,
           Step::kForwardCombine, "h*R*I: back in the order of the all-to-all");
  rows.use_as(comm, "experts.combined_output", exchanges ? s.hidden * moe.local : 0, s.dtype,
              Step::kForwardCombine, Step::kForwardCombine, "h*R: after the all-to-all");
  rows.use("ffn.output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardCombine,
           Step::kForwardOutput, "h*u: tokens put back in order");
}

void add_dispatch_backward(MegatronBlock& block, const ExpertRows& moe) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool exchanges = block.plan.ep > 1;
  const bool sorts = moe.experts > 1;
  const Component comm = Component::kCommunication;
  rows.use("experts.combined_gradient", s.hidden * moe.local, s.dtype, Step::kBackwardCombine,
           exchanges ? Step::kBackwardCombine : Step::kBackwardUnsort, "h*R");
  rows.use_as(comm, "experts.received_gradient", exchanges ? s.hidden * moe.received : 0, s.dtype,
              Step::kBackwardCombine, Step::kBackwardUnsort, "h*R*I: after the all-to-all");
  rows.use("experts.fc2_gradient", sorts ? s.hidden * moe.gathered : 0, s.dtype,
           Step::kBackwardUnsort, Step::kBackwardFc1,
           "h*G: in expert order, until the first expert, the last in backward, has used it");
  rows.use("experts.fc1_input_gradients", s.hidden * moe.gathered, s.dtype, Step::kBackwardDispatch,
           Step::kBackwardDispatch, "h*G: of all experts, one by one");
  rows.use("experts.joined_gradient", sorts ? s.hidden * moe.gathered : 0, s.dtype,
           Step::kBackwardDispatch, Step::kBackwardDispatch, "h*G: joined in expert order");
  rows.use("experts.token_gradient", s.hidden * s.sharded_tokens, s.dtype, Step::kBackwardDispatch,
           Step::kBackwardFfnNorm, "h*u: rows added up by token");
}

// Experts run one by one, the last one first in backward: at the worst instant all of them still
// hold what they saved, and one has its gradients.
void add_experts(MegatronBlock& block, const ExpertRows& moe) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t inner = moe.gathered * moe.width;
  const std::int64_t one = moe.one_expert * moe.width;
  const bool several = moe.experts > 1;
  keep_or_recompute(block, moe.replays, Step::kBackwardCombine, "experts.fc1_output",
                    s.ffn_pieces * inner, s.dtype,
                    {.born = Step::kForwardFc1,
                     .last_forward_use = Step::kForwardActivation,
                     .dies = several ? Step::kBackwardFc1 : Step::kBackwardActivation},
                    "2f*G/et: gate and up, saved as input of the activation");
  keep_or_recompute(block, moe.replays, Step::kBackwardCombine, "experts.activation_output", inner,
                    s.dtype,
                    {.born = Step::kForwardActivation,
                     .last_forward_use = Step::kForwardFc2,
                     .dies = several ? Step::kBackwardFc1 : Step::kBackwardFc2},
                    "f*G/et: input of the second product");
  rows.use("experts.activation_gradient", one, s.dtype, Step::kBackwardFc2,
           several ? Step::kBackwardFc2 : Step::kBackwardActivation, "f*G/(e*et): of one expert")
      .is_first_product = true;
  rows.use("experts.fc1_gradient", s.ffn_pieces * one, s.dtype, Step::kBackwardActivation,
           several ? Step::kBackwardActivation : Step::kBackwardFc1, "2f*G/(e*et): of one expert");
  rows.use("experts.fc1_input_gradient", s.hidden * moe.one_expert, s.dtype, Step::kBackwardFc1,
           Step::kBackwardFc1, "h*G/e: of one expert");
  add_weight_gradient(block, "experts.fc1_weight_gradient", s.ffn_pieces * s.hidden * moe.width,
                      Step::kBackwardFc1);
  add_weight_gradient(block, "experts.fc2_weight_gradient", s.hidden * moe.width,
                      Step::kBackwardFc2);
}

// The shared experts are an MLP of their own (shared_experts.py), run before the dispatch.
void add_shared_experts(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t width = div_ceil(block.job.model.moe.shared_ffn, block.plan.tp);
  const std::int64_t inner = s.tokens * width;
  const bool replays =
      block.selective() && (block.recomputed().shared_experts || block.recomputed().moe);
  const Life life{.born = Step::kForwardFfnNorm,
                  .last_forward_use = Step::kForwardFfnNorm,
                  .dies = Step::kBackwardFfnNorm};
  keep_or_recompute(block, replays, Step::kBackwardFfnNorm, "shared.fc1_output",
                    s.ffn_pieces * inner, s.dtype, life, "2f_s*T/t");
  keep_or_recompute(block, replays, Step::kBackwardFfnNorm, "shared.activation_output", inner,
                    s.dtype, life, "f_s*T/t");
  rows.use("shared.output", s.hidden * s.sharded_tokens * (width > 0 ? 1 : 0), s.dtype,
           Step::kForwardFfnNorm, Step::kForwardOutput, "h*u: added to the routed output");
  rows.use("shared.fc1_gradient", s.ffn_pieces * inner, s.dtype, Step::kBackwardFfnNorm,
           Step::kBackwardFfnNorm, "2f_s*T/t");
}

}  // namespace

void add_local_moe(MegatronBlock& block) {
  const ExpertRows moe = expert_rows(block);
  add_local_ffn_norm(block);
  add_local_ffn_norm_gradient(block);
  add_router(block, moe);
  add_dispatch_forward(block, moe);
  add_dispatch_backward(block, moe);
  add_experts(block, moe);
  add_shared_experts(block);
}

}  // namespace shardplan::megatron
