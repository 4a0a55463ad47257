// The rule that keeps byte counts inside 64 bits: sizes far beyond any GPU are refused, not
// wrapped.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// 2^62 bytes at 256 bytes for every element of width; the largest of Megatron-LM's activations,
// fp32 logits with their gradient, take some tens.
inline constexpr double kMaxActivationElements = 18014398509481984.0;  // 2^54

// Microbatches of which a rank holds activations, at most: all of them where all forwards go first,
// else the warm-up of estimator/plan/schedule.cpp.
inline double most_in_flight(const Job& job, const Plan& plan) {
  const double all = static_cast<double>(microbatches_of(job, plan));
  if (plan.pp == 1) {
    return 1;
  }
  if (row_of(plan.schedule).group == MicrobatchGroup::kAll) {
    return all;
  }
  const double group = plan.vpp == 1 ? 1 : static_cast<double>(interleaved_group(job, plan));
  return std::min(all, 2 * static_cast<double>(plan.pp) + static_cast<double>(plan.vpp) * group);
}

// Elements of width that one token may have in a layer beside those of the model's shape.
struct OptionWidths {
  double pairs = 0;     // of its position with others
  double gathered = 0;  // of tokens of other ranks
};

// Elements of width that one token has in all layers and the head together, as if the rank held
// the whole model.
inline double widths_of_token(const Job& job, const Plan& plan, const OptionWidths& more) {
  const ModelSpec& model = job.model;
  const MlaSpec& mla = model.mla;
  const MoeSpec& moe = model.moe;
  const std::int64_t head_dim = std::max(model.head_dim, mla.qk_head_dim() + mla.v_head_dim);
  const std::int64_t attention =
      (model.num_heads + 2 * model.num_kv_heads) * head_dim + mla.q_lora_rank + mla.kv_lora_rank;
  const ExpertRows rows = job.profile.expert_rows();
  const double copies = static_cast<double>(moe.topk * plan.etp) *
                        std::max({1.0, rows.imbalance, rows.capacity, plan.moe_buffer_factor});
  const double experts = copies * static_cast<double>(model.hidden + moe.expert_ffn) +
                         static_cast<double>(moe.num_experts);
  const double layer = static_cast<double>(model.hidden + attention + model.ffn + moe.shared_ffn) +
                       more.pairs + more.gathered;
  return static_cast<double>(model.num_layers() + model.num_mtp_layers) * (layer + experts) +
         static_cast<double>(model.vocab + job.profile.vocab_multiple * plan.tp) *
             static_cast<double>(1 + model.num_mtp_layers);
}

inline double most_tokens_of_microbatch(const Job& job, const Plan& plan,
                                        const OptionWidths& more) {
  return std::floor(kMaxActivationElements /
                    (most_in_flight(job, plan) * widths_of_token(job, plan, more)));
}

// Of a framework whose options may add widths. Assumes that all rules about divisibility hold.
template <OptionWidths (*option_widths)(const Job& job)>
inline constexpr ValidityRule kMicrobatchTooLargeWith = {
    .name = "microbatch_too_large",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kEtp, PlanField::kPp, PlanField::kVpp,
              PlanField::kMicroBatch, PlanField::kSchedule, PlanField::kMoeBufferFactor},
    .broken =
        [](const Job& job, const Plan& plan) {
          return static_cast<double>(job.sequence_length) / static_cast<double>(plan.cp) *
                     static_cast<double>(plan.micro_batch) >
                 most_tokens_of_microbatch(job, plan, option_widths(job));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "sequence_length " + number_text(job.sequence_length) + " / cp " +
                 number_text(plan.cp) + " * micro_batch " + number_text(plan.micro_batch) +
                 " tokens, up to " +
                 number_text(static_cast<std::int64_t>(most_in_flight(job, plan))) +
                 " times in flight, are beyond counting; valid: at most " +
                 number_text(static_cast<std::int64_t>(
                     most_tokens_of_microbatch(job, plan, option_widths(job)))) +
                 " tokens";
        }};

inline OptionWidths no_widths(const Job& /*job*/) {
  return {};
}
inline constexpr ValidityRule kMicrobatchTooLarge = kMicrobatchTooLargeWith<no_widths>;

}  // namespace shardplan
