// Validity rules that several profiles share. Each row is data: a profile's table names the rows
// that apply to it, in the order in which they are tried.
//
// `broken` may assume that the rows before it in its table hold: sizes are positive and tp * cp *
// pp divides the number of GPUs, so that no product here overflows. Rows named "unsupported:
// <field>" assume nothing: search asks them alone which values of a field a profile knows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// --- sizes of the grid ---------------------------------------------------------------------------

inline constexpr ValidityRule kSizesPositive = {
    .name = "sizes_positive",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kEp, PlanField::kEtp, PlanField::kPp,
              PlanField::kVpp, PlanField::kDp, PlanField::kDpReplicate, PlanField::kMicroBatch},
    .field_by_field = true,
    .broken =
        [](const Job& job, const Plan& plan) {
          return std::min({plan.tp, plan.cp, plan.ep, plan.etp, plan.pp, plan.vpp,
                           plan.dp_replicate, plan.micro_batch, job.sequence_length,
                           job.global_batch}) < 1 ||
                 plan.dp < 0;
        },
    .explain = explain_sizes_positive};

inline constexpr ValidityRule kWorldByTpCpPp = {
    .name = "world_divisible_by_tp_cp_pp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return !product_divides(job.cluster.world_size(), plan.tp, plan.cp, plan.pp);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return product_text({{"tp", plan.tp}, {"cp", plan.cp}, {"pp", plan.pp}}) +
                 " does not divide the number of GPUs, " + number_text(job.cluster.world_size()) +
                 "; valid products: " + divisors_text(job.cluster.world_size());
        }};

inline constexpr ValidityRule kDpMatchesWorld = {
    .name = "dp_matches_world",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDp},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.dp != 0 && plan.dp != dp_of(job, plan); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "dp " + number_text(plan.dp) + " with " +
                 product_text({{"tp", plan.tp}, {"cp", plan.cp}, {"pp", plan.pp}}) +
                 " does not fill " + number_text(job.cluster.world_size()) +
                 " GPUs; valid dp: " + number_text(dp_of(job, plan));
        }};

inline constexpr ValidityRule kGlobalBatch = {
    .name = "global_batch_divisible_by_micro_batch_dp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kMicroBatch},
    .broken =
        [](const Job& job, const Plan& plan) {
          return !product_divides(job.global_batch, dp_of(job, plan), plan.micro_batch, 1);
        },
    .explain = explain_global_batch};

inline constexpr ValidityRule kRankOrderComplete = {
    .name = "rank_order_names_each_dimension_once",
    .reads = {PlanField::kRankOrder},
    .broken =
        [](const Job&, const Plan& plan) {
          return !std::ranges::is_permutation(plan.rank_order, Plan{}.rank_order);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "rank_order " + rank_order_text(plan.rank_order) +
                 " does not name pp, dp, cp and tp once each";
        }};

// --- attention -----------------------------------------------------------------------------------

inline constexpr ValidityRule kHeadsByTp = {
    .name = "heads_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job, const Plan& plan) { return job.model.num_heads % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return heads_by_tp_text(job, "num_heads", job.model.num_heads, plan.tp);
        }};

inline constexpr ValidityRule kKvHeadsByTp = {
    .name = "kv_heads_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.num_kv_heads % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return heads_by_tp_text(job, "num_kv_heads", job.model.num_kv_heads, plan.tp);
        }};

// Megatron-LM core/transformer/transformer_config.py: a multiple or a divisor.
inline constexpr ValidityRule kKvHeadsAndTp = {
    .name = "kv_heads_multiple_or_divisor_of_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const std::int64_t kv_heads = job.model.num_kv_heads;
          return job.model.attention == AttentionKind::kGqa && kv_heads % plan.tp != 0 &&
                 plan.tp % kv_heads != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_kv_heads " + number_text(job.model.num_kv_heads) +
                 " is neither a multiple nor a divisor of tp " + number_text(plan.tp) +
                 "; valid tp: " + divisors_text(job.model.num_kv_heads) + " and multiples of " +
                 number_text(job.model.num_kv_heads);
        }};

inline constexpr ValidityRule kHeadsByKvHeads = {
    .name = "heads_divisible_by_kv_heads",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.model.attention == AttentionKind::kGqa &&
                 job.model.num_heads % job.model.num_kv_heads != 0;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_divisible("num_heads", job.model.num_heads, "num_kv_heads",
                               job.model.num_kv_heads);
        }};

inline constexpr ValidityRule kSpNeedsTp = {
    .name = "sequence_parallel_needs_tp",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken = [](const Job&, const Plan& plan) { return plan.sequence_parallel && plan.tp == 1; },
    .explain = [](const Job&, const Plan&) -> std::string {
      return "sequence_parallel needs tp > 1; found tp 1; valid: tp >= 2, or no sequence_parallel";
    }};

// Causal balance: each cp rank takes one chunk from the front and one from the back
// (Megatron-LM training/arguments.py).
inline constexpr ValidityRule kSequenceByCp = {
    .name = "sequence_divisible_by_2_cp",
    .reads = {PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && job.sequence_length % (2 * plan.cp) != 0;
        },
    .explain = explain_sequence_by_cp};

inline constexpr ValidityRule kSequenceByTp = {
    .name = "sequence_divisible_by_cp_tp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kSequenceParallel},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.sequence_parallel && job.sequence_length / plan.cp % plan.tp != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "sequence_parallel: " + not_divisible("sequence_length / cp",
                                                       job.sequence_length / plan.cp, "tp",
                                                       plan.tp);
        }};

// Transformer Engine context_parallel.py: query and kv heads of a tp rank are dealt over cp ranks.
inline constexpr ValidityRule kA2aHeads = {
    .name = "a2a_heads_divisible_by_cp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kCpMethod},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && plan.cp_method == CpMethod::kA2a &&
                 (job.model.num_heads / plan.tp % plan.cp != 0 ||
                  kv_heads_on_rank(job, plan) % plan.cp != 0);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::int64_t kv_heads = kv_heads_on_rank(job, plan);
          return "cp_method a2a: query heads " + number_text(job.model.num_heads / plan.tp) +
                 " and kv heads " + number_text(kv_heads) +
                 " of a tp rank are not both divisible by cp " + number_text(plan.cp) +
                 "; valid cp: divisors of " + number_text(kv_heads) + ": " +
                 divisors_text(kv_heads) + "; or cp_method ring, all_gather";
        }};

// Megatron-LM core/transformer/multi_token_prediction.py: the projection from 2 * hidden to hidden
// is column parallel.
inline constexpr ValidityRule kMtpProjectionByTp = {
    .name = "hidden_divisible_by_tp_with_mtp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.model.num_mtp_layers > 0 && job.model.hidden % plan.tp != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_mtp_layers " + number_text(job.model.num_mtp_layers) + ": " +
                 not_divisible("hidden", job.model.hidden, "tp", plan.tp);
        }};

// --- feed-forward and experts --------------------------------------------------------------------

inline constexpr ValidityRule kFfnByTp = {
    .name = "ffn_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.model.ffn % plan.tp != 0 && job.model.has_dense_layers();
        },
    .explain = [](const Job& job,
                  const Plan& plan) { return not_divisible("ffn", job.model.ffn, "tp", plan.tp); }};

inline constexpr ValidityRule kSharedFfnByTp = {
    .name = "shared_ffn_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.moe.shared_ffn % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("moe.shared_ffn", job.model.moe.shared_ffn, "tp", plan.tp);
        }};

inline constexpr ValidityRule kExpertAxesNeedExperts = {
    .name = "ep_etp_need_experts",
    .reads = {PlanField::kEp, PlanField::kEtp},
    .broken = [](const Job& job,
                 const Plan& plan) { return (plan.ep > 1 || plan.etp > 1) && !has_experts(job); },
    .explain =
        [](const Job&, const Plan& plan) {
          return "ep " + number_text(plan.ep) + ", etp " + number_text(plan.etp) +
                 ": the model has no experts (num_experts 0); valid: ep 1, etp 1";
        }};

inline constexpr ValidityRule kExpertsByEp = {
    .name = "experts_divisible_by_ep",
    .reads = {PlanField::kEp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.moe.num_experts % plan.ep != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("num_experts", job.model.moe.num_experts, "ep", plan.ep);
        }};

inline constexpr ValidityRule kExpertFfnByEtp = {
    .name = "expert_ffn_divisible_by_etp",
    .reads = {PlanField::kEtp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.moe.expert_ffn % plan.etp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("moe.expert_ffn", job.model.moe.expert_ffn, "etp", plan.etp);
        }};

// Megatron-LM core/parallel_state.py: expert ranks are dealt anew inside each pipeline stage.
inline constexpr ValidityRule kWorldByEtpEpPp = {
    .name = "world_divisible_by_etp_ep_pp",
    .reads = {PlanField::kEp, PlanField::kEtp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return !product_divides(job.cluster.world_size(), plan.pp, plan.ep, plan.etp);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return product_text({{"etp", plan.etp}, {"ep", plan.ep}, {"pp", plan.pp}}) +
                 " does not divide the number of GPUs, " + number_text(job.cluster.world_size()) +
                 "; valid etp * ep: " + divisors_text(job.cluster.world_size() / plan.pp);
        }};

// --- state sharding ------------------------------------------------------------------------------

// Whole shards: each copy of the state takes dp / dp_replicate of the data-parallel ranks.
inline constexpr ValidityRule kDpReplicate = {
    .name = "dp_divisible_by_dp_replicate",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate},
    .broken = [](const Job& job,
                 const Plan& plan) { return dp_of(job, plan) % plan.dp_replicate != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("dp", dp_of(job, plan), "dp_replicate", plan.dp_replicate);
        }};

inline constexpr ValidityRule kExpertDpReplicate = {
    .name = "expert_dp_divisible_by_dp_replicate",
    .reads = {PlanField::kEp, PlanField::kEtp, PlanField::kPp, PlanField::kDpReplicate},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.cluster.world_size() / (plan.pp * plan.ep * plan.etp) % plan.dp_replicate != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("GPUs / (pp * ep * etp)",
                               job.cluster.world_size() / (plan.pp * plan.ep * plan.etp),
                               "dp_replicate", plan.dp_replicate);
        }};

inline constexpr ValidityRule kDpReplicateNeedsZero = {
    .name = "dp_replicate_needs_zero",
    .reads = {PlanField::kDpReplicate, PlanField::kZero},
    .broken = [](const Job&, const Plan& plan) { return plan.dp_replicate > 1 && plan.zero == 0; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "dp_replicate " + number_text(plan.dp_replicate) +
                 " copies a sharded state, but zero is 0; valid: zero >= 1, or dp_replicate 1";
        }};

// --- state in host memory ------------------------------------------------------------------------

inline constexpr ValidityRule kOffloadOptimizerShare = {
    .name = "offload_optimizer_is_a_share",
    .reads = {PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return !(plan.offload.optimizer >= 0 && plan.offload.optimizer <= 1);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "offload.optimizer " + number_text(plan.offload.optimizer) +
                 " is not a share; valid: 0 to 1";
        }};

}  // namespace shardplan
