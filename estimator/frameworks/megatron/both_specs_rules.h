// What Megatron-LM core_v0.16.1 refuses whatever its layers are made of, Transformer Engine's or
// its own.
#pragma once

#include "estimator/plan/units.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// fp32, or the type that computes (--grad-reduce-in-bf16; fp16 without fp32 accumulation).
constexpr bool is_gradient_dtype(Precision precision, DType dtype) {
  return dtype == DType::kFp32 ||
         dtype == (precision == Precision::kFp16 ? DType::kFp16 : DType::kBf16);
}

inline constexpr ValidityRule kGradDtype = {
    .name = "unsupported: grad_dtype",
    .reads = {PlanField::kPrecision, PlanField::kGradDtype},
    .broken = [](const Job&,
                 const Plan& plan) { return !is_gradient_dtype(plan.precision, plan.grad_dtype); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "grad_dtype", name_of(plan.grad_dtype),
                              plan.precision == Precision::kFp16 ? "fp32, fp16" : "fp32, bf16");
        }};

// tp-cp-ep-dp-pp, or with --use-tp-pp-dp-mapping tp-cp-ep-pp-dp; here slowest first.
inline const RankOrder kDefaultOrder = Plan{}.rank_order;
inline constexpr RankOrder kTpPpDpOrder = {Dimension::kDp, Dimension::kPp, Dimension::kCp,
                                           Dimension::kTp};

inline constexpr ValidityRule kRankOrder = {
    .name = "unsupported: rank_order",
    .reads = {PlanField::kRankOrder},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.rank_order != kDefaultOrder && plan.rank_order != kTpPpDpOrder;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(
              job, "rank_order", rank_order_text(plan.rank_order),
              rank_order_text(kDefaultOrder) + " or " + rank_order_text(kTpPpDpOrder));
        }};

// The fused qkv weight is cut into tp equal parts even where kv heads are fewer than tp ranks.
inline constexpr ValidityRule kQkvByTp = {
    .name = "qkv_width_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          return model.attention == AttentionKind::kGqa &&
                 2 * model.num_kv_heads * model.head_dim % plan.tp != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("2 * num_kv_heads * head_dim",
                               2 * job.model.num_kv_heads * job.model.head_dim, "tp", plan.tp);
        }};

// core/transformer/moe/moe_layer.py, forward.
inline constexpr ValidityRule kMoeNeedsSp = {
    .name = "experts_with_tp_need_sequence_parallel",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.tp > 1 && !plan.sequence_parallel;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_experts " + number_text(job.model.moe.num_experts) + " with tp " +
                 number_text(plan.tp) +
                 " needs sequence_parallel; valid: sequence_parallel true, or tp 1";
        }};

// core/distributed/distributed_data_parallel.py: without expert parallelism the gradients of
// experts are reduced with the dense ones, over ranks of one tp index (see expert_state_shards in
// job.h). Where etp is not tp these hold other slices of the experts, or not all that hold the
// same. With one data-parallel rank there is no reduction, and runs of it were measured.
inline constexpr ValidityRule kExpertSlicesFollowTp = {
    .name = "experts_without_ep_are_sliced_as_tp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kEp, PlanField::kEtp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.ep == 1 && plan.etp != plan.tp &&
                 dp_of(job, plan) * plan.cp > 1;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "ep 1 with etp " + number_text(plan.etp) + " and tp " + number_text(plan.tp) +
                 ": gradients of experts would be reduced over the dense data-parallel ranks, "
                 "which hold other slices; valid: etp " +
                 number_text(plan.tp) + ", or ep above 1";
        }};

}  // namespace shardplan::megatron
