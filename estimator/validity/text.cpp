#include "estimator/validity/text.h"

#include <cstdio>
#include <numeric>
#include <vector>

#include "estimator/plan/layer_partition.h"
#include "estimator/validity/rules.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxListed = 12;        // values in one message
constexpr std::int64_t kMaxTried = 1'000'000;  // candidates looked at to find them

// Values from 1 to `last` that pass, at most kMaxListed of them.
template <class Passes>
std::string list_text(std::int64_t last, Passes passes) {
  std::string list;
  std::int64_t listed = 0;
  for (std::int64_t value = 1; value <= std::min(last, kMaxTried); ++value) {
    if (!passes(value)) {
      continue;
    }
    if (listed == kMaxListed) {
      return list + ", ...";
    }
    append_item(list, ", ", number_text(value));
    ++listed;
  }
  return listed == 0 ? "none" : list;
}

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::string list;
  for (const std::int64_t count : layers) { append_item(list, ",", number_text(count)); }
  return list;
}

// The split closest to even: the first chunks take one layer more.
std::string nearly_even_text(std::int64_t layers, std::int64_t chunks) {
  if (chunks > layers || chunks > 4 * kMaxListed) {
    return {};
  }
  std::vector<std::int64_t> split(static_cast<std::size_t>(chunks), layers / chunks);
  for (std::int64_t chunk = 0; chunk < layers % chunks; ++chunk) {
    ++split[static_cast<std::size_t>(chunk)];
  }
  return ", for example " + layers_text(split);
}

}  // namespace

void append_item(std::string& list, std::string_view separator, std::string_view item) {
  list += list.empty() ? "" : separator;
  list += item;
}

std::string number_text(std::int64_t number) {
  return std::to_string(number);
}

std::string number_text(double number) {
  std::array<char, 32> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%g", number);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

std::string divisors_text(std::int64_t number) {
  return list_text(number, [&](std::int64_t value) { return number % value == 0; });
}

namespace {

std::string not_divisible_by(std::string_view name, std::int64_t number,
                             std::string_view divisor_name, std::int64_t divisor,
                             const std::string& valid) {
  return std::string(name) + " " + number_text(number) + " is not divisible by " +
         std::string(divisor_name) + " " + number_text(divisor) + "; valid " +
         std::string(divisor_name) + ": " + valid;
}

}  // namespace

std::string not_divisible(std::string_view name, std::int64_t number, std::string_view divisor_name,
                          std::int64_t divisor) {
  return not_divisible_by(name, number, divisor_name, divisor, divisors_text(number));
}

std::string heads_by_tp_text(const Job& job, std::string_view name, std::int64_t heads,
                             std::int64_t tp) {
  return not_divisible_by(name, heads, "tp", tp,
                          divisors_text(std::gcd(heads, job.cluster.world_size())));
}

std::string product_text(std::initializer_list<NamedFactor> factors) {
  std::string product;
  for (const NamedFactor& factor : factors) {
    append_item(product, " * ", std::string(factor.name) + " " + number_text(factor.size));
  }
  return product;
}

std::string not_modelled(const Job& job, std::string_view field, std::string_view found,
                         std::string_view modelled) {
  return std::string(field) + " " + std::string(found) + " is not modelled for " +
         job.profile.name + " " + job.profile.version + "; modelled: " + std::string(modelled);
}

std::string rank_order_text(const RankOrder& order) {
  std::string list;
  for (const Dimension dimension : order) { append_item(list, ",", name_of(dimension)); }
  return list;
}

std::string explain_sizes_positive(const Job& job, const Plan& plan) {
  const std::array<NamedFactor, 10> sizes = {{{"tp", plan.tp},
                                              {"cp", plan.cp},
                                              {"ep", plan.ep},
                                              {"etp", plan.etp},
                                              {"pp", plan.pp},
                                              {"vpp", plan.vpp},
                                              {"dp_replicate", plan.dp_replicate},
                                              {"micro_batch", plan.micro_batch},
                                              {"sequence_length", job.sequence_length},
                                              {"global_batch", job.global_batch}}};
  for (const NamedFactor& size : sizes) {
    if (size.size < 1) {
      return std::string(size.name) + " " + number_text(size.size) +
             " is not positive; valid: 1 or more";
    }
  }
  return "dp " + number_text(plan.dp) + " is negative; valid: 1 or more, or 0 to derive it";
}

std::string explain_global_batch(const Job& job, const Plan& plan) {
  const std::int64_t dp = dp_of(job, plan);
  const std::string fact = "global_batch " + number_text(job.global_batch) +
                           " is not divisible by " +
                           product_text({{"micro_batch", plan.micro_batch}, {"dp", dp}});
  if (job.global_batch % dp == 0) {
    return fact + "; valid micro_batch: " + divisors_text(job.global_batch / dp);
  }
  const std::int64_t group = dp * plan.micro_batch;
  const std::int64_t below = job.global_batch / group * group;
  return fact + "; valid global_batch: " + (below > 0 ? number_text(below) + ", " : "") +
         number_text(below + group) + " (multiples of " + number_text(group) +
         "), or sizes that leave dp " +
         list_text(job.cluster.world_size(), [&](std::int64_t degree) {
           return job.cluster.world_size() % degree == 0 && job.global_batch % degree == 0;
         });
}

std::string explain_sequence_by_cp(const Job& job, const Plan& plan) {
  return "sequence_length " + number_text(job.sequence_length) +
         " is not divisible by 2 * cp with cp " + number_text(plan.cp) +
         "; valid cp: " + list_text(job.sequence_length, [&](std::int64_t cp) {
           return cp == 1 || job.sequence_length % (2 * cp) == 0;
         });
}

std::string explain_schedule_fits_pipeline(const Job&, const Plan& plan) {
  std::string found = "schedule " + std::string(name_of(plan.schedule)) + " with pp " +
                      number_text(plan.pp) + " and vpp " + number_text(plan.vpp) + "; valid: ";
  const ScheduleRow& row = row_of(plan.schedule);
  const std::string chunks =
      "vpp " + (row.most_chunks > row.least_chunks ? std::string(">= ") : std::string()) +
      number_text(row.least_chunks);
  if (row.most_stages == 1) {
    return found + "pp 1 and " + chunks;
  }
  return row.least_stages > 1
             ? found + "pp >= " + number_text(row.least_stages) + " and " + chunks
             : found + chunks + ", or schedule " + std::string(name_of(Schedule::kInterleaved1F1B));
}

std::string explain_layers_split_evenly(const Job& job, const Plan& plan) {
  const std::int64_t layers = job.model.num_layers();
  const std::int64_t slots = layer_slots(job);
  std::string message = "num_layers " + number_text(layers);
  if (slots != layers) {
    message += " (" + number_text(slots) + " with embedding or head counted as a layer)";
  }
  message +=
      " do not split evenly over " + product_text({{"pp", plan.pp}, {"vpp", plan.vpp}}) +
      "; valid pp at vpp " + number_text(plan.vpp) + ": " +
      list_text(slots, [&](std::int64_t pp) { return product_divides(slots, plan.vpp, pp, 1); });
  if (slots == layers && product_divides(layers + 2, plan.pp, plan.vpp, 1)) {
    message +=
        "; or count embedding and head as a layer each (" + number_text(layers + 2) + " in all)";
  }
  message += "; or give layers_per_chunk";
  return plan.pp <= layers && plan.vpp <= layers
             ? message + nearly_even_text(layers, plan.pp * plan.vpp)
             : message;
}

std::string explain_loss_on_last_stage(const Job& job, const Plan& plan) {
  const std::int64_t world = job.cluster.world_size();
  return "pp " + number_text(plan.pp) +
         " leaves the loss before the last stage, or the final norm before the head's, as blocks "
         "are dealt by their cost; valid pp: " +
         list_text(world, [&](std::int64_t pp) {
           Plan other = plan;
           other.pp = pp;
           return world % pp == 0 && !layers_per_chunk(job, other).empty();
         });
}

std::string explain_layers_per_chunk(const Job& job, const Plan& plan) {
  const std::vector<std::int64_t>& layers = plan.layers_per_chunk;
  const double sum = std::accumulate(layers.begin(), layers.end(), 0.0);
  return "layers_per_chunk " + layers_text(layers) + " has " +
         number_text(static_cast<std::int64_t>(layers.size())) + " entries and " +
         number_text(sum) + " layers; valid: one entry for each of " +
         product_text({{"pp", plan.pp}, {"vpp", plan.vpp}}) + " chunks, none negative, " +
         number_text(job.model.num_layers()) + " layers in all";
}

std::string explain_interleaved_microbatches(const Job& job, const Plan& plan) {
  const std::int64_t m = microbatches_of(job, plan);
  const std::int64_t group = interleaved_group(job, plan);
  return "interleaved_1f1b: " + number_text(m) + " microbatches (global_batch " +
         number_text(job.global_batch) + " / (micro_batch " + number_text(plan.micro_batch) +
         " * dp " + number_text(dp_of(job, plan)) + ")) do not fill groups of " +
         number_text(group) + " with pp " + number_text(plan.pp) + "; valid: a multiple of " +
         number_text(std::max(group, plan.pp));
}

std::string explain_recompute_fields(const Job&, const Plan& plan) {
  std::string found = "recompute.granularity " + std::string(name_of(plan.recompute.granularity)) +
                      " with " +
                      (plan.recompute.modules == RecomputeModules{} ? "no modules" : "modules") +
                      ", " + (plan.recompute.policy.empty() ? "no policy" : "a policy") +
                      ", num_layers " + number_text(plan.recompute.num_layers) + "; valid: ";
  switch (plan.recompute.granularity) {
    case RecomputeGranularity::kNone: return found + "no modules, no policy, num_layers 1";
    case RecomputeGranularity::kSelective: return found + "modules or a policy, num_layers 1";
    case RecomputeGranularity::kFull: return found + "no modules, no policy";
  }
  return found;
}

std::string explain_recompute_modules(const Job& job, const Plan& plan) {
  const RecomputeModules& modules = plan.recompute.modules;
  if (modules.mla_up_proj && !job.model.is_mla()) {
    return "recompute module mla_up_proj: the model has no multi-latent attention";
  }
  if ((modules.moe || modules.moe_act) && !has_experts(job)) {
    return "recompute modules moe, moe_act: the model has no experts (num_experts 0)";
  }
  return "recompute module shared_experts: the model has no shared expert (shared_ffn 0)";
}

}  // namespace shardplan
