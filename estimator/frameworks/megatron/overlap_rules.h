// What of Megatron-LM core_v0.16.1 runs beside something else, and what that needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// training/arguments.py, validate_args. With tp 1 there is nothing to overlap.
inline constexpr ValidityRule kTpOverlapNeedsSp = {
    .name = "tp_overlap_needs_sequence_parallel",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.tp_overlap != TpOverlap::kExposed && plan.tp > 1 &&
                 !plan.sequence_parallel;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "tp_overlap " + std::string(name_of(job.profile.tp_overlap)) + " with tp " +
                 number_text(plan.tp) +
                 " needs sequence_parallel; valid: sequence_parallel true, or tp_overlap exposed";
        }};

// core/transformer/transformer_config.py, TransformerConfig.__post_init__.
inline constexpr ValidityRule kExpertOverlapNeeds = {
    .name = "overlap_moe_expert_parallel_comm_needs_exchanges",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kEp, PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.overlap_moe_expert_parallel_comm &&
                 (plan.ep == 1 || (plan.pp > 1 && plan.vpp == 1) ||
                  job.profile.moe_dispatcher == MoeDispatcher::kAllGather ||
                  plan.recompute.granularity == RecomputeGranularity::kFull);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "overlap_moe_expert_parallel_comm with ep " + number_text(plan.ep) + ", pp " +
                 number_text(plan.pp) + ", vpp " + number_text(plan.vpp) +
                 "; valid: ep above 1, with pp above 1 vpp above 1, moe_dispatcher alltoall, "
                 "deepep "
                 "or hybridep, recompute none or selective";
        }};

// The same. It does nothing where there are no shared experts.
inline constexpr ValidityRule kSharedOverlapNeeds = {
    .name = "moe_shared_expert_overlap_needs_all_to_all",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const FrameworkProfile& profile = job.profile;
          return profile.moe_shared_expert_overlap && job.model.moe.shared_ffn > 0 &&
                 (profile.moe_dispatcher != MoeDispatcher::kAllToAll ||
                  profile.overlap_moe_expert_parallel_comm ||
                  plan.recompute.modules.shared_experts);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "moe_shared_expert_overlap needs moe_dispatcher alltoall, "
              "overlap_moe_expert_parallel_comm false and shared_experts not recomputed alone");
        }};

// What runs beside something else, each with its value.
inline std::vector<std::string> overlaps_of(const FrameworkProfile& profile, const Plan& plan) {
  std::vector<std::string> overlaps;
  const auto add = [&](bool is_on, std::string_view name, std::string_view value) {
    if (is_on) {
      overlaps.push_back(std::string(name) + " " + std::string(value));
    }
  };
  add(profile.overlap_grad_reduce, "overlap_grad_reduce", "true");
  add(profile.overlap_param_gather, "overlap_param_gather", "true");
  add(profile.overlap_p2p_comm && plan.vpp > 1, "overlap_p2p_comm", "true");
  add(profile.overlap_moe_expert_parallel_comm, "overlap_moe_expert_parallel_comm", "true");
  add(profile.moe_shared_expert_overlap, "moe_shared_expert_overlap", "true");
  add(profile.tp_overlap != TpOverlap::kExposed, "tp_overlap", name_of(profile.tp_overlap));
  add(plan.cp > 1 && profile.cp_overlap != CpOverlap::kExposed, "cp_overlap",
      name_of(profile.cp_overlap));
  return overlaps;
}

// core/transformer/transformer_config.py, __post_init__.
inline constexpr ValidityRule kRouterGraphsNeedExperts = {
    .name = "router_graphs_need_experts",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.cuda_graphs == CudaGraphs::kRouter && job.model.moe.num_experts <= 1;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "cuda_graphs router of " + number_text(job.model.moe.num_experts) +
                 " experts; valid: cuda_graphs none, attention or layers, or a model with experts";
        }};

// A host that waits for each kernel has one of them running at a time, whatever was asked for.
inline constexpr ValidityRule kLaunchBlockingOverlaps = {
    .name = "launch_blocking_overlaps_nothing",
    .reads = {PlanField::kVpp, PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.launch_blocking && !overlaps_of(job.profile, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          std::string found;
          for (const std::string& overlap : overlaps_of(job.profile, plan)) {
            found += (found.empty() ? "" : ", ") + overlap;
          }
          return "launch_blocking with " + found +
                 ": one kernel runs at a time; valid: every overlap false or exposed, or "
                 "launch_blocking false";
        }};

}  // namespace shardplan::megatron
