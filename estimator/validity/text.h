// Words for the messages of validity rules: both numbers and the values that would be valid.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "estimator/plan/job.h"

namespace shardplan {

std::string number_text(std::int64_t number);
std::string number_text(double number);

// Adds an item to a list, after a separator unless it is the first.
void append_item(std::string& list, std::string_view separator, std::string_view item);

// "1, 2, 4, 8": ascending; where there are many, the first ones and the number itself.
std::string divisors_text(std::int64_t number);

// "num_heads 32 is not divisible by tp 3; valid tp: 1, 2, 4, 8, 16, 32"
std::string not_divisible(std::string_view name, std::int64_t number, std::string_view divisor_name,
                          std::int64_t divisor);

// The same of heads, with the values of tp that divide the number of GPUs, too.
std::string heads_by_tp_text(const Job& job, std::string_view name, std::int64_t heads,
                             std::int64_t tp);

// "tp 3 * cp 1 * pp 1", without computing a product that could overflow.
struct NamedFactor {
  std::string_view name;
  std::int64_t size = 1;
};
std::string product_text(std::initializer_list<NamedFactor> factors);

// "schedule zbv is not modelled for megatron core_v0.16.1; modelled: none, 1f1b"
std::string not_modelled(const Job& job, std::string_view field, std::string_view found,
                         std::string_view modelled);

std::string rank_order_text(const RankOrder& order);

// Messages that need more than a line.
std::string explain_sizes_positive(const Job& job, const Plan& plan);
std::string explain_global_batch(const Job& job, const Plan& plan);
std::string explain_sequence_by_cp(const Job& job, const Plan& plan);
std::string explain_schedule_fits_pipeline(const Job& job, const Plan& plan);
std::string explain_layers_split_evenly(const Job& job, const Plan& plan);
std::string explain_layers_per_chunk(const Job& job, const Plan& plan);
std::string explain_loss_on_last_stage(const Job& job, const Plan& plan);
std::string explain_interleaved_microbatches(const Job& job, const Plan& plan);
std::string explain_recompute_fields(const Job& job, const Plan& plan);
std::string explain_recompute_modules(const Job& job, const Plan& plan);

}  // namespace shardplan
