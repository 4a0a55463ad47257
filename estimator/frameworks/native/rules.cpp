// What our own trainer accepts.
#include "estimator/frameworks/native/rules.h"

#include <algorithm>

#include "estimator/frameworks/pieces/unfused_widths.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/schedule.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::native {
namespace {

// Of a microbatch after cp; the sequence divides by cp, or an earlier rule says so.
std::int64_t tokens_of_microbatch(const Job& job, const Plan& plan) {
  return plan.micro_batch * (job.sequence_length / plan.cp);
}

constexpr ValidityRule kZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1, 2, 3>;
constexpr ValidityRule kSchedule =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone, Schedule::kGpipe,
                Schedule::k1F1B, Schedule::kInterleaved1F1B, Schedule::kZbH1, Schedule::kZbv>;
// In fp8 the products of dense layers run; those of experts are grouped, and wait for their own.
bool multiplies_in_fp8(const Job& job) {
  return !has_experts(job) && !job.model.is_mla();
}
constexpr ValidityRule kPrecision = {
    .name = "unsupported: precision",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp32 ||
                 (plan.precision == Precision::kFp8 && !multiplies_in_fp8(job));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::string found =
              std::string(name_of(plan.precision)) +
              (has_experts(job) ? " with num_experts " + number_text(job.model.moe.num_experts)
                                : "");
          return not_modelled(job, "precision", found,
                              multiplies_in_fp8(job) ? "bf16, fp16, fp8" : "bf16, fp16");
        }};

constexpr ValidityRule kGradDtype =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kFp32, DType::kBf16>;
constexpr ValidityRule kExpAvgDtype =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32, DType::kBf16>;
constexpr ValidityRule kExpAvgSqDtype =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32,
                DType::kBf16>;

// Its kernels know windows (kernels/attention/attention.h), in which queries after the first of a
// chunk see keys of the chunk before.
constexpr ValidityRule kNoChunks = {
    .name = "unsupported: model.attention_chunk_size",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return std::ranges::any_of(job.model.layers, [&](const LayerSpec& layer) {
            return layer.attends_in_chunks && layer.attention_window < job.sequence_length;
          });
        },
    .explain =
        [](const Job& job, const Plan&) {
          const auto chunked =
              std::ranges::find_if(job.model.layers, &LayerSpec::attends_in_chunks);
          return not_modelled(job, "model.attention_chunk_size",
                              number_text(chunked->attention_window),
                              "sequences no longer than a chunk");
        }};

// Received tokens of a rank are bounded by the factor times the mean; ep times the mean is all of
// them.
constexpr ValidityRule kMoeBufferFactor = {
    .name = "moe_buffer_factor_within_ep",
    .reads = {PlanField::kEp, PlanField::kMoeBufferFactor},
    .broken =
        [](const Job& job, const Plan& plan) {
          const bool in_range =
              plan.moe_buffer_factor >= 1 && plan.moe_buffer_factor <= static_cast<double>(plan.ep);
          return plan.moe_buffer_factor != 1 && (!in_range || !has_experts(job));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "moe_buffer_factor " + number_text(plan.moe_buffer_factor) + " with num_experts " +
                 number_text(job.model.moe.num_experts) + " and ep " + number_text(plan.ep) +
                 "; valid: 1" + (has_experts(job) ? " to ep" : " (the model has no experts)");
        }};

// The tp ranks of a group divide its tokens to route them, with sequence parallelism or without.
constexpr ValidityRule kRoutedTokensByTp = {
    .name = "routed_tokens_divisible_by_tp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kMicroBatch},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && tokens_of_microbatch(job, plan) % plan.tp != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_experts " + number_text(job.model.moe.num_experts) + ": " +
                 not_divisible("micro_batch * sequence_length / cp",
                               tokens_of_microbatch(job, plan), "tp", plan.tp);
        }};

// Global ranks between the stages of a pipeline.
std::int64_t pipeline_stride(const Job& job, const Plan& plan) {
  std::int64_t stride = 1;
  for (std::size_t i = plan.rank_order.size(); i-- > 0;) {
    switch (plan.rank_order[i]) {
      case Dimension::kPp: return stride;
      case Dimension::kDp: stride *= dp_of(job, plan); break;
      case Dimension::kCp: stride *= plan.cp; break;
      case Dimension::kTp: stride *= plan.tp; break;
    }
  }
  return stride;
}

// Ranks that share experts write rows into the memory of each other's GPU (validator/cuda/reach.h),
// which other machines do not reach. They are ep * etp neighbours among the ranks of a stage
// (rank_grid.h, kExperts).
bool shares_experts_across_nodes(const Job& job, const Plan& plan) {
  const std::int64_t sharing = plan.ep * plan.etp;
  if (!has_experts(job) || sharing == 1 || job.cluster.nodes == 1) {
    return false;
  }
  const bool are_neighbours = pipeline_stride(job, plan) % sharing == 0;
  return job.cluster.gpus_per_node % (are_neighbours ? sharing : sharing * plan.pp) != 0;
}
constexpr ValidityRule kExpertsWithinNode = {
    .name = "experts_within_one_machine",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kEp, PlanField::kEtp, PlanField::kPp,
              PlanField::kRankOrder},
    .broken = shares_experts_across_nodes,
    .explain = [](const Job& job, const Plan& plan) {
      return "ep " + number_text(plan.ep) + " * etp " + number_text(plan.etp) +
             " ranks share experts across machines of " + number_text(job.cluster.gpus_per_node) +
             " GPUs; valid: ep * etp that divides them, and a rank_order that keeps it together";
    }};

// Layers of the chunk that has the fewest.
std::int64_t fewest_layers(const Job& job, const Plan& plan) {
  if (!plan.layers_per_chunk.empty()) {
    return *std::ranges::min_element(plan.layers_per_chunk);
  }
  const std::int64_t chunks = plan.pp * plan.vpp;
  const std::int64_t embedding = job.profile.account_for_embedding_in_split ? 1 : 0;
  const std::int64_t loss = job.profile.account_for_loss_in_split ? 1 : 0;
  return layer_slots(job) / chunks - (chunks == 1 ? embedding + loss : std::max(embedding, loss));
}

// A chunk without layers would only pass on what it receives.
constexpr ValidityRule kLayersInEveryChunk = {
    .name = "layers_in_every_chunk",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
    .broken = [](const Job& job, const Plan& plan) { return fewest_layers(job, plan) < 1; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return number_text(job.model.num_layers()) + " layers in " +
                 number_text(plan.pp * plan.vpp) + " chunks leave one with " +
                 number_text(fewest_layers(job, plan)) + "; valid: at least 1 in every chunk";
        }};

// The gradients of a layer's norms come with its backward, those of its matrices with its weight
// action: units of ZeRO 2 and 3 would be reduced twice for every microbatch.
constexpr ValidityRule kZeroBubbleWithoutUnits = {
    .name = "zero_bubble_needs_zero_0_or_1",
    .reads = {PlanField::kZero, PlanField::kSchedule},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.zero > 1 && row_of(plan.schedule).splits_backward;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "schedule " + std::string(name_of(plan.schedule)) + " with zero " +
                 number_text(plan.zero) + "; valid: zero 0 or 1, or a schedule whose backward is " +
                 "one action";
        }};

// On one tp rank.
std::int64_t packed_qkv_width(const Job& job, const Plan& plan) {
  return (job.model.num_heads / plan.tp + 2 * kv_heads_on_rank(job, plan)) * job.model.head_dim;
}

// cuBLAS 13 documentation, "cublasLtMatmul", fp8 kernels: all dimensions of a product are multiples
// of 16 bytes; tokens are the inner dimension of weight gradients.
constexpr ValidityRule kFp8Products = {
    .name = "fp8_products_divisible_by_16",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kMicroBatch, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          const auto divides = [](std::int64_t size) { return size % 16 == 0; };
          return plan.precision == Precision::kFp8 &&
                 !(divides(tokens_of_microbatch(job, plan)) && divides(model.hidden) &&
                   divides(model.num_heads * model.head_dim / plan.tp) &&
                   divides(packed_qkv_width(job, plan)) && divides(model.ffn / plan.tp));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          return "precision fp8: tokens of a microbatch / cp " +
                 number_text(tokens_of_microbatch(job, plan)) + ", hidden " +
                 number_text(model.hidden) + ", heads * head_dim / tp " +
                 number_text(model.num_heads * model.head_dim / plan.tp) + ", packed q, k and v " +
                 number_text(packed_qkv_width(job, plan)) + ", ffn / tp " +
                 number_text(model.ffn / plan.tp) + "; valid: multiples of 16";
        }};

constexpr std::array kRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kZero,
    kSchedule,
    kPrecision,
    kGradDtype,
    kMasterFp32Only,
    kExpAvgDtype,
    kExpAvgSqDtype,
    kRecomputePolicyUnsupported,
    kNoChunks,
    kOffloadOptimizerUnsupported,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kTrainsAll,
    kQuantizationUnsupported,
    kLayerNormUnsupported,
    kLearnedPositionsUnsupported,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    kAdamWOnly,
    // accepted
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsAndTp,
    kHeadsByKvHeads,
    kMtpProjectionByTp,
    kScheduleFitsPipeline,
    kZeroBubbleWithoutUnits,
    kLayersSplitEvenly,
    kLayersPerChunk,
    kLayersInEveryChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kInterleavedMicrobatches,
    kSpNeedsTp,
    kSequenceByCp,
    kSequenceByTp,
    kFfnByTp,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kExpertFfnByEtp,
    kSharedFfnByTp,
    kWorldByEtpEpPp,
    kExpertsWithinNode,
    kA2aHeads,
    kDpReplicateNeedsZero,
    kDpReplicate,
    kExpertDpReplicate,
    kRecomputeFieldsFitGranularity,
    kRecomputeLayers,
    kRecomputeModulesExist,
    kMoeBufferFactor,
    kRoutedTokensByTp,
    kFp8NeedsGpu,
    kFp8Products,
    kMicrobatchTooLargeWith<widths_where_deterministic>,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kRules;
}

}  // namespace shardplan::native
