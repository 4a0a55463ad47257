// Rows of tokens that a Megatron layer sends to its experts and back, with either dispatcher.
// Letters in block_rows.h, but h the width that experts see; e ep, et etp.
#include "estimator/frameworks/megatron/blocks/dispatch.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/dispatch_cost.h"
#include "estimator/plan/expert_routing.h"

#include <algorithm>

namespace shardplan::megatron {
namespace {

// Outputs of experts that take turns are joined for the dispatcher, and the gradients of their
// inputs, whose parts come one by one (core/transformer/moe/experts.py, SequentialMLP.forward).
void add_expert_ends(MegatronBlock& block, std::int64_t elements, std::string_view formula) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const std::int64_t turns = expert_turns(block);
  rows.use("experts.fc2_output", elements, dtype, Step::kForwardFc2, Step::kForwardUnsort, formula);
  rows.use("experts.fc2_output_parts", turns > 1 ? elements : 0, dtype, Step::kForwardFc2,
           Step::kForwardFc2, "the outputs of the experts, before they are joined");
  rows.use("experts.fc1_input_gradient_part", turns > 1 ? div_ceil(elements, turns) : 0, dtype,
           Step::kBackwardFc1, Step::kBackwardFc1, "of the expert that runs backward first");
  rows.use("experts.fc1_input_gradient", elements, dtype,
           turns > 1 ? Step::kBackwardDispatch : Step::kBackwardFc1, Step::kBackwardDispatch,
           formula);
}

// Transformer Engine v2.11 pytorch/quantization.py, get_align_size_for_quantization: the rows of
// each expert are padded to a multiple. The number of rows of an expert is anything, so that half
// of what can be missing is; it is known where each has its capacity.
std::int64_t padded_rows(const MegatronBlock& block, std::int64_t rows) {
  const Job& job = block.job;
  if (block.plan.precision != Precision::kFp8) {
    return rows;
  }
  const std::int64_t align = job.profile.fp8_recipe == Fp8Recipe::kMxfp8 ? 32 : 16;
  const std::int64_t experts = div_ceil(job.model.moe.num_experts, block.plan.ep);
  return job.profile.moe_capacity_factor > 0 ? experts * round_up(div_ceil(rows, experts), align)
                                             : rows + div_ceil(experts * (align - 1), 2);
}

// Of frozen experts the layer's forward alone holds it, until they are done (MoELayer,
// routed_experts_compute).
void add_expert_input(MegatronBlock& block, const Dispatch& dispatch, bool recomputed,
                      std::string_view formula) {
  if (!saves_input(block, adapts_fc1(block.job))) {
    block.rows.use("experts.fc1_input", block.routed_width() * dispatch.padded, block.shape.dtype,
                   Step::kForwardDispatch, Step::kForwardUnsort, formula);
    return;
  }
  keep_or_recompute(block, recomputed, Step::kBackwardCombine, "experts.fc1_input",
                    block.linear_elements(block.routed_width() * dispatch.padded),
                    block.linear_dtype(),
                    {.born = Step::kForwardDispatch,
                     .last_forward_use = Step::kForwardFc1,
                     .dies = block.weight_step(Step::kBackwardFc1)},
                    formula);
}

// Two microbatches' layers side by side exchange rows on a stream of their own, whose blocks no
// other takes.
AllocationStream exchange_stream(const MegatronBlock& block) {
  return block.job.profile.overlap_moe_expert_parallel_comm ? AllocationStream::kGather
                                                            : AllocationStream::kCompute;
}

// The forward's local variables keep every stage of the dispatched tokens alive until the experts'
// outputs are combined: permuted and received rows, expert outputs before and after unsorting
// (MoELayer.forward, routed_experts_compute).
void add_dispatch(MegatronBlock& block, const Dispatch& dispatch, bool recomputed) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AllocationStream stream = exchange_stream(block);
  const std::int64_t h = block.routed_width();
  const bool exchanges = block.plan.ep > 1;
  const bool gathers = block.plan.etp > 1;
  const Component comm = Component::kCommunication;
  if (exchanges || gathers || dispatch.sorts) {
    rows.use("experts.permuted_tokens", h * dispatch.local, s.dtype, Step::kForwardDispatch,
             Step::kForwardCombine, "topk*h*u: copies by expert, held by the layer's forward")
        .follows_load = false;
  }
  if (exchanges && (gathers || dispatch.sorts)) {
    rows.use_as(comm, "experts.received_tokens", h * dispatch.received, s.dtype,
                Step::kForwardDispatch, Step::kForwardCombine,
                "topk*h*u*I: after the all-to-all, held by the layer's forward")
        .stream = stream;
  }
  if (gathers && dispatch.sorts) {
    rows.use_as(comm, "experts.gathered_tokens", h * dispatch.gathered, s.dtype,
                Step::kForwardDispatch, Step::kForwardDispatch, "topk*h*u*I*et");
  }
  add_expert_input(block, dispatch, recomputed,
                   "topk*h*u*I*et: tokens in expert order, input of the grouped product");
  add_expert_ends(block, h * dispatch.padded, "topk*h*u*I*et");
  rows.use("experts.unsorted_output", h * dispatch.received, s.dtype, Step::kForwardUnsort,
           Step::kForwardCombine, "topk*h*u*I: back in the order of the all-to-all");
  rows.follow_load = false;
  if (exchanges) {
    rows.use_as(comm, "experts.combined_output", h * dispatch.local, s.dtype, Step::kForwardCombine,
                Step::kForwardCombine, "topk*h*u: after the all-to-all")
        .stream = stream;
  }
  rows.use("experts.combined_gradient", h * dispatch.local, s.dtype, Step::kBackwardCombine,
           Step::kBackwardCombine, "topk*h*u")
      .stream = stream;
  rows.follow_load = true;
  rows.use_as(comm, "experts.received_gradient", h * dispatch.received, s.dtype,
              Step::kBackwardCombine, Step::kBackwardUnsort, "topk*h*u*I")
      .stream = stream;
  rows.use("experts.fc2_gradient", h * dispatch.padded, s.dtype, Step::kBackwardUnsort,
           block.weight_step(Step::kBackwardFc2), "topk*h*u*I*et");
  rows.use_as(comm, "experts.returned_gradient", h * dispatch.received, s.dtype,
              Step::kBackwardDispatch, Step::kBackwardDispatch, "topk*h*u*I");
}

// MoEAllGatherTokenDispatcher: the tokens of all ranks lie in the global memory buffer; each rank
// copies those of its experts, and puts their outputs back among zeros for the reduce-scatter.
void add_all_gather_dispatch(MegatronBlock& block, const Dispatch& dispatch, bool recomputed) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t h = block.routed_width();
  const Component comm = Component::kCommunication;
  add_expert_input(block, dispatch, recomputed,
                   "topk*h*u*et*I: tokens in expert order, input of the products");
  add_expert_ends(block, h * dispatch.padded, "topk*h*u*et*I");
  rows.follow_load = false;
  rows.use("experts.unsorted_output", h * dispatch.all_tokens, s.dtype, Step::kForwardUnsort,
           Step::kForwardCombine, "h*u*e*et: outputs among zeros, before their reduce-scatter");
  rows.use_as(comm, "experts.gathered_gradient", h * dispatch.all_tokens, s.dtype,
              Step::kBackwardCombine, Step::kBackwardUnsort, "h*u*e*et");
  // Outputs take the type of the probabilities before their reduce-scatter, and their gradient is
  // gathered in it (token_combine).
  if (block.job.profile.moe_router_dtype == DType::kFp32 &&
      dispatch.all_tokens > s.sharded_tokens) {
    rows.use("experts.unsorted_output_fp32", h * dispatch.all_tokens, DType::kFp32,
             Step::kForwardCombine, Step::kForwardCombine, "h*u*e*et: cast, then reduced");
    rows.use("experts.combined_output_fp32", h * s.sharded_tokens, DType::kFp32,
             Step::kForwardCombine, Step::kForwardCombine, "h*u: before it is cast back");
    rows.use("experts.combined_gradient_fp32", h * s.sharded_tokens, DType::kFp32,
             Step::kBackwardCombine, Step::kBackwardCombine, "h*u");
    rows.use_as(comm, "experts.gathered_gradient_fp32", h * dispatch.all_tokens, DType::kFp32,
                Step::kBackwardCombine, Step::kBackwardCombine,
                "h*u*e*et: gathered before it is cast back");
  }
  rows.use("experts.fc2_gradient", h * dispatch.padded, s.dtype, Step::kBackwardUnsort,
           block.weight_step(Step::kBackwardFc2), "topk*h*u*et*I")
      .follows_load = true;
  rows.use_as(comm, "experts.returned_gradient", h * dispatch.all_tokens, s.dtype,
              Step::kBackwardDispatch, Step::kBackwardDispatch, "h*u*e*et: among zeros");
  rows.follow_load = true;
}

// MoEFlexTokenDispatcher: a token is received once (_DeepepManager), and copied for each of its
// experts behind that; HybridEP's kernels do so on the way, in both directions (_HybridEPManager).
// What the layer's forward holds is as with the all-to-all, without this rank's own copies.
void add_once_dispatch(MegatronBlock& block, const Dispatch& dispatch, bool recomputed) {
  const std::int64_t once = block.job.profile.moe_dispatcher == MoeDispatcher::kDeepEp
                                ? block.routed_width() * dispatch.once
                                : 0;
  const std::int64_t padded = block.routed_width() * dispatch.padded;
  const DType dtype = block.shape.dtype;
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  rows.use_as(comm, "experts.received_tokens", once, dtype, Step::kForwardDispatch,
              Step::kForwardCombine, "h*u*e*et*p*I: tokens with an expert here, p of all");
  add_expert_input(block, dispatch, recomputed,
                   "topk*h*u*I*et: tokens in expert order, input of the grouped product");
  add_expert_ends(block, padded, "topk*h*u*I*et");
  rows.use("experts.unsorted_output", once, dtype, Step::kForwardUnsort, Step::kForwardCombine,
           "h*u*e*et*p*I: outputs added up by token");
  rows.use_as(comm, "experts.received_gradient", once, dtype, Step::kBackwardCombine,
              Step::kBackwardUnsort, "h*u*e*et*p*I");
  rows.use("experts.fc2_gradient", padded, dtype, Step::kBackwardUnsort,
           block.weight_step(Step::kBackwardFc2), "topk*h*u*I*et");
  rows.use_as(comm, "experts.returned_gradient", once, dtype, Step::kBackwardDispatch,
              Step::kBackwardDispatch, "h*u*e*et*p*I");
}

// Under fp8 the layer's forward holds the rows that it sends through the experts in bf16, and the
// experts' forward those that it padded (core/transformer/moe/experts.py, quantization_padding).
void add_padding(MegatronBlock& block, const Dispatch& dispatch) {
  const std::int64_t h = block.routed_width();
  if (block.plan.precision != Precision::kFp8) {
    return;
  }
  block.rows.use("experts.sorted_tokens", h * dispatch.gathered, block.shape.dtype,
                 Step::kForwardDispatch, Step::kForwardUnsort,
                 "topk*h*u*I*et: tokens in expert order, in bf16");
  block.rows.use("experts.padded_tokens", div_ceil(h * dispatch.padded, expert_turns(block)),
                 block.shape.dtype, Step::kForwardDispatch, Step::kForwardFc2,
                 "topk*h*u*I*et: the same with the rows of each expert padded");
}

}  // namespace

std::int64_t expert_turns(const MegatronBlock& block) {
  return block.job.profile.moe_grouped_gemm
             ? 1
             : div_ceil(block.job.model.moe.num_experts, block.plan.ep);
}

Dispatch dispatch_of(const MegatronBlock& block) {
  const FrameworkProfile& profile = block.job.profile;
  const MoeSpec& moe = block.job.model.moe;
  const std::int64_t routed = block.shape.sharded_tokens * moe.topk;
  Dispatch dispatch;
  if (profile.moe_capacity_factor > 0) {
    const std::int64_t capacity =
        div_ceil(scaled(routed, profile.moe_capacity_factor), moe.num_experts);
    dispatch.local = capacity * moe.num_experts;
    dispatch.received = dispatch.local;
  } else {
    dispatch.local = routed;
    dispatch.received = scaled(routed, profile.moe_imbalance_factor);
  }
  dispatch.gathered = dispatch.received * block.plan.etp;
  dispatch.padded = padded_rows(block, dispatch.gathered);
  dispatch.all_tokens = block.shape.sharded_tokens * block.plan.ep * block.plan.etp;
  dispatch.once =
      std::min(dispatch.all_tokens,
               scaled(dispatch.all_tokens,
                      share_choosing(moe, div_ceil(moe.num_experts, block.plan.ep)) *
                          static_cast<double>(dispatch.received) / static_cast<double>(routed)));
  dispatch.sorts = moe.num_experts > block.plan.ep;
  return dispatch;
}

void add_token_dispatch(MegatronBlock& block, const Dispatch& dispatch, bool recomputed) {
  if (block.job.profile.moe_dispatcher == MoeDispatcher::kAllGather) {
    add_all_gather_dispatch(block, dispatch, recomputed);
  } else if (sends_tokens_once(block.job.profile)) {
    add_once_dispatch(block, dispatch, recomputed);
  } else {
    add_dispatch(block, dispatch, recomputed);
  }
  add_padding(block, dispatch);
}

}  // namespace shardplan::megatron
