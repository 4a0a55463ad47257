#include "estimator/ledger/block_rows.h"
#include "estimator/plan/schedule.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace shardplan {

DType activation_dtype(Precision precision) {
  switch (precision) {
    case Precision::kFp32: return DType::kFp32;
    case Precision::kFp16: return DType::kFp16;
    case Precision::kBf16:
    case Precision::kFp8: return DType::kBf16;
  }
  throw std::logic_error("activation_dtype: unknown precision");
}

std::int64_t scaled(std::int64_t elements, double share) {
  constexpr std::int64_t kMillion = 1'000'000;
  return div_ceil(elements * std::llround(share * 1e6), kMillion);
}

BlockShape block_shape(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  BlockShape shape;
  shape.hidden = model.hidden;
  shape.tokens = tokens_per_microbatch(job, plan);
  shape.gathers_sequence = plan.tp > 1 && plan.sequence_parallel;
  shape.sharded_tokens = sharded_tokens(job, plan);
  shape.query_heads = div_ceil(model.num_heads, plan.tp);
  shape.key_value_heads = div_ceil(model.num_kv_heads, plan.tp);
  shape.query_width = shape.query_heads * model.head_dim;
  shape.key_value_width = shape.key_value_heads * model.head_dim;
  shape.local_vocab = div_ceil(padded_vocab(job, plan), plan.tp);
  shape.ffn_pieces = model.gated_ffn ? 2 : 1;
  shape.dtype = activation_dtype(plan.precision);
  shape.delayed_weight = row_of(plan.schedule).splits_backward;
  return shape;
}

BlockRow& RowList::add(Component component, std::string_view name, std::int64_t elements,
                       DType dtype, Life life, std::string_view formula) {
  if (elements == 0) {
    return without_elements_;
  }
  BlockRow& row = rows.emplace_back();
  row.component = component;
  row.name = name;
  row.elements = elements;
  row.dtype = dtype;
  row.bytes = round_up(elements * bytes_of(dtype), alignment_);
  row.born = life.born;
  row.last_forward_use = life.last_forward_use;
  row.dies = life.dies;
  row.formula = formula;
  row.pushed = life.born;
  row.popped = life.dies;
  row.follows_load = follow_load;
  return row;
}

BlockRow& RowList::keep(std::string_view name, std::int64_t elements, DType dtype, Life life,
                        std::string_view formula) {
  return add(Component::kActivations, name, elements, dtype, life, formula);
}

BlockRow& RowList::use(std::string_view name, std::int64_t elements, DType dtype, Step born,
                       Step dies, std::string_view formula) {
  return use_as(Component::kTemporaries, name, elements, dtype, born, dies, formula);
}

BlockRow& RowList::use_as(Component component, std::string_view name, std::int64_t elements,
                          DType dtype, Step born, Step dies, std::string_view formula) {
  return add(component, name, elements, dtype,
             {.born = born, .last_forward_use = std::min(dies, kLastForward), .dies = dies},
             formula);
}

void RowList::make_once(std::string_view name, std::int64_t elements, DType dtype, Step born,
                        std::string_view formula) {
  BlockRow& row = use(name, elements, dtype, born, born, formula);
  row.made_once_bytes = std::exchange(row.bytes, 0);
  row.elements = 0;
}

void RowList::recompute(std::string_view name, std::int64_t elements, DType dtype, Life life,
                        Step replayed, std::string_view formula) {
  use(name, elements, dtype, life.born, life.last_forward_use, formula);
  add(Component::kActivations, name, elements, dtype,
      {.born = replayed, .last_forward_use = kLastForward, .dies = life.dies}, formula);
}

void RowList::split_last(std::span<const std::int64_t> elements) {
  BlockRow& row = rows.back();
  std::int64_t sum = 0;
  row.bytes = 0;
  for (const std::int64_t part : elements) {
    sum += part;
    if (part > 0) {
      row.parts.push_back(round_up(part * bytes_of(row.dtype), alignment_));
      row.bytes += row.parts.back();
    }
  }
  if (sum != row.elements) {
    throw std::logic_error("split_last: the parts of " + std::string(row.name) +
                           " are not the whole");
  }
}

void RowList::pass_last(std::span<const PassingTensor> elements) {
  BlockRow& row = rows.back();
  for (const PassingTensor& tensor : elements) {
    row.passing.push_back(
        {.bytes = round_up(tensor.bytes * bytes_of(row.dtype), alignment_), .lives = tensor.lives});
  }
}

}  // namespace shardplan
