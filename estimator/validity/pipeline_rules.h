// Validity rules that several profiles share, continued: pipeline, recomputation and precision.
// What they may assume stands in rules.h.
#pragma once

#include <cstdint>
#include <string>

#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// --- pipeline ------------------------------------------------------------------------------------

inline constexpr ValidityRule kScheduleFitsPipeline = {
    .name = "schedule_fits_pp_and_vpp",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kSchedule},
    .broken =
        [](const Job&, const Plan& plan) {
          const ScheduleRow& row = row_of(plan.schedule);
          return plan.pp < row.least_stages || plan.pp > row.most_stages ||
                 plan.vpp < row.least_chunks || plan.vpp > row.most_chunks;
        },
    .explain = explain_schedule_fits_pipeline};

inline constexpr ValidityRule kLayersSplitEvenly = {
    .name = "layers_split_evenly_over_chunks",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.layers_per_chunk.empty() &&
                 !product_divides(layer_slots(job), plan.pp, plan.vpp, 1);
        },
    .explain = explain_layers_split_evenly};

inline constexpr ValidityRule kLayersPerChunk = {
    .name = "layers_per_chunk_covers_the_model",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
    .broken =
        [](const Job& job, const Plan& plan) {
          if (plan.layers_per_chunk.empty()) {
            return false;
          }
          const auto entries = static_cast<std::int64_t>(plan.layers_per_chunk.size());
          std::int64_t left = job.model.num_layers();
          for (const std::int64_t layers : plan.layers_per_chunk) {
            if (layers < 0 || layers > left) {
              return true;
            }
            left -= layers;
          }
          return left != 0 || entries % plan.pp != 0 || entries / plan.pp != plan.vpp;
        },
    .explain = explain_layers_per_chunk};

inline constexpr ValidityRule kInterleavedMicrobatches = {
    .name = "microbatches_fill_interleaved_groups",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kMicroBatch,
              PlanField::kSchedule},
    .broken =
        [](const Job& job, const Plan& plan) {
          if (!row_of(plan.schedule).fills_groups) {
            return false;
          }
          const std::int64_t m = microbatches_of(job, plan);
          const std::int64_t group = interleaved_group(job, plan);
          const std::int64_t rest = m % group;
          return group < plan.pp || group > m || (rest > 0 && rest < plan.pp);
        },
    .explain = explain_interleaved_microbatches};

// --- recompute -----------------------------------------------------------------------------------

inline constexpr ValidityRule kRecomputeFieldsFitGranularity = {
    .name = "recompute_fields_fit_granularity",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job&, const Plan& plan) {
          const Recompute& recompute = plan.recompute;
          const bool names_modules = recompute.modules != RecomputeModules{};
          const bool names_policy = !recompute.policy.empty();
          switch (recompute.granularity) {
            case RecomputeGranularity::kNone:
              return names_modules || names_policy || recompute.num_layers != 1;
            case RecomputeGranularity::kSelective:
              return names_modules == names_policy || recompute.num_layers != 1;
            case RecomputeGranularity::kFull: return names_modules || names_policy;
          }
          return true;
        },
    .explain = explain_recompute_fields};

inline constexpr ValidityRule kRecomputeLayers = {
    .name = "recompute_num_layers_within_chunk",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk, PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.recompute.granularity == RecomputeGranularity::kFull &&
                 plan.recompute.num_layers != 1 &&
                 (plan.recompute.num_layers < 1 ||
                  plan.recompute.num_layers > longest_chunk(job, plan));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "recompute.num_layers " + number_text(plan.recompute.num_layers) +
                 " is not within the layers of a chunk; valid: 1 to " +
                 number_text(longest_chunk(job, plan));
        }};

inline constexpr ValidityRule kRecomputeModulesExist = {
    .name = "recompute_modules_exist_in_model",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const RecomputeModules& modules = plan.recompute.modules;
          return (modules.mla_up_proj && !job.model.is_mla()) ||
                 ((modules.moe || modules.moe_act) && !has_experts(job)) ||
                 (modules.shared_experts && job.model.moe.shared_ffn == 0);
        },
    .explain = explain_recompute_modules};

// --- precision -----------------------------------------------------------------------------------

// Transformer Engine pytorch/fp8.py, check_fp8_support: compute capability 8.9 or above.
inline constexpr ValidityRule kFp8NeedsGpu = {
    .name = "fp8_needs_compute_capability_89",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp8 && job.cluster.gpu.compute_capability < 89;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "precision fp8 needs a GPU of compute capability 89 or above; " +
                 job.cluster.gpu.id + " has " + number_text(job.cluster.gpu.compute_capability) +
                 "; valid: bf16, fp16";
        }};

}  // namespace shardplan
