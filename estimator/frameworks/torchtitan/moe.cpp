#include "estimator/frameworks/torchtitan/moe.h"

#include <algorithm>

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kInt32 = 4;
constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kGroupRows = 8;  // TOKEN_GROUP_ALIGN_SIZE_M of models/moe/utils.py

}  // namespace

std::int64_t index_sort_bytes(std::int64_t rows) {
  constexpr std::int64_t kTensors = 6;
  return kTensors * kInt64 * rows;
}

TitanMoe::TitanMoe(const TitanBlock& block) {
  const MoeSpec& moe = block.job.model.moe;
  const Plan& plan = block.plan;
  const BlockShape& s = block.shape;
  exists = block.has_experts();
  if (!exists) {
    return;
  }
  exchanges = plan.ep > 1;
  scores_rows_first = block.scores_rows_first();
  saves_exchanges =
      exchanges && (block.job.model.is_mla() || scores_rows_first || block.is_gpt_oss());
  sums_gradient = plan.etp > 1;
  tokens = s.tokens;
  chosen = moe.topk * tokens;
  sent = plan.etp < plan.tp ? div_ceil(chosen, plan.tp) : chosen;
  experts = div_ceil(moe.num_experts, plan.ep);
  padded = round_up(sent + experts * kGroupRows, kGroupRows);
  width = div_ceil(moe.expert_ffn, plan.etp);
  const std::int64_t element = block.is_autocast() ? kFp32 : kBf16;
  const std::int64_t row = element * s.hidden;
  logits = kBf16 * moe.num_experts * tokens;
  scores = kFp32 * moe.num_experts * tokens;
  choices = kInt64 * chosen;
  weights = kFp32 * chosen;
  denominators = scores_rows_first ? 0 : kFp32 * tokens;
  order = kInt64 * sent;
  order_weights = kFp32 * sent;
  slots = kInt32 * padded;
  stream = row * tokens;
  rows = row * sent;
  rows_and_zero = row * (sent + 1);
  padded_rows = row * padded;
  expert_input = kBf16 * s.hidden * padded;
  inner = kBf16 * width * padded;
  all_rows = row * chosen;
  const std::int64_t scored = block.is_autocast() ? kBf16 : kFp32;
  if (scores_rows_first) {
    wide_rows = kFp32 * s.hidden * sent;
  } else {
    scored_rows = scored * s.hidden * chosen;
    summed = scored * s.hidden * tokens;
  }
  shared_inner = kBf16 * block.shared_width() * tokens;
  if (block.is_gpt_oss()) {
    set_biases(block);
  }
}

// models/gpt_oss/model/moe.py, _run_experts_grouped_mm: repeat_interleave stops where the rows of
// the last expert do, padded to whole eights. GptOssGroupedExperts.forward looks for a mesh
// dimension "tp", which experts over ep and etp do not have.
void TitanMoe::set_biases(const TitanBlock& block) {
  is_biased = true;
  divides_bias = block.plan.tp > 1 && !exchanges;
  const std::int64_t rows_of_experts =
      std::min(padded, experts * round_up(div_ceil(sent, experts), kGroupRows));
  const std::int64_t slack = padded - rows_of_experts;
  bias_rows = kInt64 * rows_of_experts;
  wide_inner = 2 * inner;
  first_biases = kBf16 * 2 * width * rows_of_experts;
  first_slack = kBf16 * 2 * width * slack;
  second_biases = kBf16 * block.shape.hidden * rows_of_experts;
  second_slack = kBf16 * block.shape.hidden * slack;
  truths = width * padded;
}

}  // namespace shardplan::torchtitan
