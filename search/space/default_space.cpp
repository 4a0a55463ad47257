// The values that a practitioner would try on every axis, for one job, and all that its profile
// knows.
#include "search/space/default_space.h"

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/frameworks/framework.h"
#include "search/space/search_space.h"
#include "search/space/space.h"

namespace shardplan {

namespace {

constexpr std::int64_t kMaxMicroBatch = 32;            // sequences
constexpr std::int64_t kMaxMicroBatchTokens = 131072;  // beyond it products do not get faster
constexpr std::int64_t kMinTokensPerCpRank = 1024;     // below it attention is all communication
constexpr std::int64_t kMaxChunksPerRank = 16;

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t divisor = 1; divisor * divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      found.push_back(divisor);
      if (divisor != number / divisor) {
        found.push_back(number / divisor);
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

// The divisors of `number` that pass.
std::vector<std::int64_t> divisors_where(std::int64_t number,
                                         const std::function<bool(std::int64_t)>& passes) {
  std::vector<std::int64_t> found = divisors(number);
  std::erase_if(found, [&](std::int64_t divisor) { return !passes(divisor); });
  return found;
}

// Chunks per rank with which some pp of the list splits the layers (almost) evenly.
std::vector<std::int64_t> chunks_per_rank(const Job& job, const std::vector<std::int64_t>& pps) {
  const std::int64_t layers = job.model.num_layers();
  std::vector<std::int64_t> found;
  for (std::int64_t vpp = 1; vpp <= kMaxChunksPerRank; ++vpp) {
    const bool splits = std::ranges::any_of(pps, [&](std::int64_t pp) {
      const std::int64_t missing = round_up(layers, pp * vpp) - layers;
      return pp > 1 && pp * vpp <= layers + 2 && missing <= kMissingLayersAlways;
    });
    if (vpp == 1 || splits) {
      found.push_back(vpp);
    }
  }
  return found;
}

Recompute selective(std::initializer_list<bool RecomputeModules::*> modules) {
  Recompute recompute;
  recompute.granularity = RecomputeGranularity::kSelective;
  for (bool RecomputeModules::*module : modules) { recompute.modules.*module = true; }
  return recompute;
}

Recompute full(RecomputeMethod method, std::int64_t num_layers) {
  Recompute recompute;
  recompute.granularity = RecomputeGranularity::kFull;
  recompute.method = method;
  recompute.num_layers = num_layers;
  return recompute;
}

// Whether recomputation of norms frees anything in some layer of the model.
bool has_separate_norms(const Job& job) {
  return std::ranges::any_of(job.model.layers, [&](const LayerSpec& layer) {
    const SeparateNorms norms = separate_norms(job, layer.is_moe);
    return norms.attention || norms.ffn;
  });
}

// Module sets of published Megatron recipes; core_attn frees nothing under fused attention and is
// left to --range. Full recompute of the first n layers of a chunk: n in powers of two.
std::vector<Recompute> module_choices(const Job& job) {
  using Modules = RecomputeModules;
  const ModelSpec& model = job.model;
  const bool norms = has_separate_norms(job);
  std::vector<Recompute> choices = {Recompute{}};
  if (norms) {
    choices.push_back(selective({&Modules::layernorm}));
  }
  if (model.has_dense_layers()) {
    choices.push_back(selective({&Modules::mlp}));
    if (norms) {
      choices.push_back(selective({&Modules::layernorm, &Modules::mlp}));
    }
  }
  if (model.moe.num_experts > 0) {
    choices.push_back(selective({&Modules::moe_act}));
    choices.push_back(selective({&Modules::layernorm, &Modules::moe_act}));
    choices.push_back(selective({&Modules::moe}));
  }
  if (model.is_mla()) {
    choices.push_back(selective({&Modules::mla_up_proj}));
    choices.push_back(selective({&Modules::layernorm, &Modules::mla_up_proj, &Modules::mlp}));
    if (model.moe.num_experts > 0) {
      choices.push_back(selective(
          {&Modules::layernorm, &Modules::mla_up_proj, &Modules::mlp, &Modules::moe_act}));
    }
  }
  choices.push_back(full(RecomputeMethod::kUniform, 1));
  for (std::int64_t layers = 1; layers < model.num_layers(); layers *= 2) {
    choices.push_back(full(RecomputeMethod::kBlock, layers));
  }
  return choices;
}

// Sets of modules and policies, of which a framework has one or the other.
std::vector<Recompute> recompute_choices(const Job& job) {
  std::vector<Recompute> choices = module_choices(job);
  for (const std::string_view policy : kRecomputePolicies) {
    choices.push_back({.granularity = RecomputeGranularity::kSelective,
                       .modules = {},
                       .policy = std::string(policy)});
  }
  return choices;
}

template <class Row, std::size_t size>
auto values_of(const std::array<Row, size>& rows) {
  std::vector<decltype(Row::value)> values(size);
  std::ranges::transform(rows, values.begin(), &Row::value);
  return values;
}

// The values of one field that the profile models beside the others of a plan. Its rules are asked
// one by one, so that whatever else is wrong with the job does not empty the axis.
template <class Value>
std::vector<Value> supported(const Job& job, std::string_view field_name, Value Plan::*field,
                             std::vector<Value> values, const Plan& beside = {}) {
  const std::string refusal = "unsupported: " + std::string(field_name);
  std::erase_if(values, [&](const Value& value) {
    Plan plan = beside;
    plan.*field = value;
    return std::ranges::any_of(validity_rules(job.profile), [&](const ValidityRule& rule) {
      return rule.name == refusal && rule.broken(job, plan);
    });
  });
  return values;
}

template <class Value>
void move_to_front(std::vector<Value>& values, Value first) {
  std::stable_partition(values.begin(), values.end(),
                        [&](const Value& value) { return value == first; });
}

std::vector<std::int64_t> zero_stages(const Job& job) {
  if (uses_muon(job)) {
    return {0};
  }
  auto stages = supported<std::int64_t>(job, "zero", &Plan::zero, {0, 1, 2, 3});
  move_to_front(stages, job.profile.default_zero);
  return stages;
}

// Shards within some nodes each, and where replicas are asked for one by one, whole models on every
// GPU.
std::vector<std::int64_t> replicas(const Job& job, const std::vector<std::int64_t>& stages) {
  const std::int64_t nodes = job.cluster.nodes;
  if (framework_of(job.profile).gains_by_replicas) {
    std::vector<std::int64_t> found = divisors(nodes);
    if (job.cluster.gpus_per_node > 1 && std::ranges::find(stages, 0) != stages.end()) {
      found.push_back(job.cluster.world_size());
    }
    return found;
  }
  return stages.size() > 2 && nodes > 1 ? std::vector<std::int64_t>{1, nodes}
                                        : std::vector<std::int64_t>{1};
}

void choose_parallel_sizes(const Job& job, SearchSpace& space) {
  const ModelSpec& model = job.model;
  const std::int64_t world = job.cluster.world_size();
  const std::int64_t domain = std::max(job.cluster.gpus_per_node, job.cluster.gpus_per_domain());
  space.tp = divisors_where(
      world, [&](std::int64_t tp) { return tp <= domain && model.num_heads % tp == 0; });
  space.cp = divisors_where(world, [&](std::int64_t cp) {
    return cp == 1 ||
           (job.sequence_length % (2 * cp) == 0 && job.sequence_length / cp >= kMinTokensPerCpRank);
  });
  space.ep = {1};
  space.etp = {1};
  if (model.moe.num_experts > 0) {
    space.ep =
        divisors_where(world, [&](std::int64_t ep) { return model.moe.num_experts % ep == 0; });
    space.etp = space.tp;
    std::erase_if(space.etp, [&](std::int64_t etp) { return model.moe.expert_ffn % etp != 0; });
  }
  space.pp = divisors_where(world, [&](std::int64_t pp) { return pp <= model.num_layers() + 2; });
  space.vpp = chunks_per_rank(job, space.pp);
  space.micro_batch = divisors_where(job.global_batch, [&](std::int64_t micro_batch) {
    return micro_batch == 1 || (micro_batch <= kMaxMicroBatch &&
                                micro_batch * job.sequence_length <= kMaxMicroBatchTokens);
  });
}

}  // namespace

SearchSpace default_space(const Job& job) {
  SearchSpace space;
  choose_parallel_sizes(job, space);
  space.schedule = supported(job, "schedule", &Plan::schedule, values_of(kSchedules));
  space.cp_method = supported(job, "cp_method", &Plan::cp_method, values_of(kCpMethods));
  move_to_front(space.cp_method, job.profile.default_cp_method);
  space.zero = zero_stages(job);
  const std::int64_t most_zero = framework_of(job.profile).most_zero_unasked;
  std::erase_if(space.zero, [&](std::int64_t zero) { return zero > most_zero; });
  space.dp_replicate = replicas(job, space.zero);
  space.recompute =
      supported(job, "recompute.policy", &Plan::recompute,
                supported(job, "recompute", &Plan::recompute, recompute_choices(job)));
  space.sequence_parallel = {job.profile.default_sequence_parallel,
                             !job.profile.default_sequence_parallel};
  space.precision = {Precision::kBf16};
  space.grad_dtype = {job.profile.default_grad_dtype};
  space.rank_order = {Plan{}.rank_order};
  return space;
}

namespace {

// Layer counts of full recomputation: every short one, then coarser.
std::vector<std::int64_t> recompute_layer_counts(std::int64_t num_layers) {
  std::vector<std::int64_t> counts = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32};
  for (std::int64_t layers = 48; layers < num_layers; layers += 16) { counts.push_back(layers); }
  std::erase_if(counts, [&](std::int64_t layers) { return layers >= num_layers; });
  return counts;
}

template <class Value>
void add_new(std::vector<Value>& choices, const Value& choice) {
  if (std::ranges::find(choices, choice) == choices.end()) {
    choices.push_back(choice);
  }
}

// Every set of modules that the model has and the profile knows, and every layer count.
std::vector<Recompute> all_recompute_choices(const Job& job, std::vector<Recompute> choices) {
  const ModelSpec& model = job.model;
  using Modules = RecomputeModules;
  std::vector<bool Modules::*> modules = {&Modules::core_attn};
  if (has_separate_norms(job)) {
    modules.push_back(&Modules::layernorm);
  }
  if (model.has_dense_layers()) {
    modules.push_back(&Modules::mlp);
  }
  if (model.moe.num_experts > 0) {
    modules.push_back(&Modules::moe_act);
    modules.push_back(&Modules::moe);
  }
  if (model.moe.shared_ffn > 0) {
    modules.push_back(&Modules::shared_experts);
  }
  if (model.is_mla()) {
    modules.push_back(&Modules::mla_up_proj);
  }
  for (std::uint32_t set = 1; set < std::uint32_t{1} << modules.size(); ++set) {
    Recompute choice = selective({});
    for (std::size_t at = 0; at < modules.size(); ++at) {
      choice.modules.*modules[at] = (set >> at & 1) != 0;
    }
    add_new(choices, choice);
  }
  for (const std::int64_t layers : recompute_layer_counts(model.num_layers())) {
    add_new(choices, full(RecomputeMethod::kUniform, layers));
    add_new(choices, full(RecomputeMethod::kBlock, layers));
  }
  return supported(job, "recompute", &Plan::recompute,
                   supported(job, "recompute.modules", &Plan::recompute, std::move(choices)));
}

std::vector<RankOrder> all_rank_orders(const Job& job, const RankOrder& first) {
  RankOrder order = {Dimension::kPp, Dimension::kDp, Dimension::kCp, Dimension::kTp};
  std::vector<RankOrder> orders = {first};
  do {
    if (order != first) {
      orders.push_back(order);
    }
  } while (std::ranges::next_permutation(order).found);
  return supported(job, "rank_order", &Plan::rank_order, std::move(orders));
}

// What some stage of ZeRO can keep on the host.
std::vector<Offload> all_offloads(const Job& job, const std::vector<std::int64_t>& stages) {
  std::vector<Offload> offloads;
  for (const bool parameters : {false, true}) {
    for (const bool activations : {false, true}) {
      for (const double share : {0.0, 0.5, 1.0}) {
        offloads.push_back(
            {.optimizer = share, .activations = activations, .parameters = parameters});
      }
    }
  }
  std::erase_if(offloads, [&](const Offload& offload) {
    return std::ranges::none_of(stages, [&](std::int64_t zero) {
      std::vector<Offload> left = {offload};
      for (const char* field : {"offload.optimizer", "offload.activations", "offload.parameters"}) {
        left = supported(job, field, &Plan::offload, std::move(left), {.zero = zero});
      }
      return !left.empty();
    });
  });
  return offloads;
}

}  // namespace

// fp16 moments and fp16 products have the bytes and the speed of bf16: they are left to --range.
SearchSpace wide_space(const Job& job) {
  SearchSpace space = default_space(job);
  space.zero = zero_stages(job);
  if (space.zero != std::vector<std::int64_t>{0}) {
    const Plan sharded = {.zero = std::ranges::max(space.zero)};
    const std::vector<std::int64_t> nodes = divisors(job.cluster.nodes);
    for (const std::int64_t replicas :
         supported(job, "dp_replicate", &Plan::dp_replicate, nodes, sharded)) {
      add_new(space.dp_replicate, replicas);
    }
    std::ranges::sort(space.dp_replicate);
  }
  space.recompute = all_recompute_choices(job, space.recompute);
  space.precision =
      supported(job, "precision", &Plan::precision, std::vector{Precision::kBf16, Precision::kFp8});
  std::erase_if(space.precision, [&](Precision precision) {
    return precision == Precision::kFp8 && job.cluster.gpu.fp8_flops_per_s == 0;
  });
  space.rank_order = all_rank_orders(job, space.rank_order.front());
  const auto dtypes = [&](std::string_view name, DType Plan::*field, DType first,
                          std::vector<DType> values) {
    values = supported(job, name, field, std::move(values));
    move_to_front(values, first);
    return values.empty() ? std::vector{first} : values;
  };
  space.grad_dtype = dtypes("grad_dtype", &Plan::grad_dtype, job.profile.default_grad_dtype,
                            {DType::kFp32, DType::kBf16});
  space.master_dtype =
      dtypes("master_dtype", &Plan::master_dtype, DType::kFp32, {DType::kFp32, DType::kBf16});
  space.exp_avg_dtype = dtypes("exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32,
                               {DType::kFp32, DType::kBf16, DType::kFp8});
  space.exp_avg_sq_dtype = dtypes("exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32,
                                  {DType::kFp32, DType::kBf16, DType::kFp8});
  space.offload = all_offloads(job, space.zero);
  if (job.model.moe.num_experts > 0) {
    space.moe_buffer_factor = supported(job, "moe_buffer_factor", &Plan::moe_buffer_factor,
                                        std::vector<double>{1, 1.5, 2});
  }
  return space;
}

}  // namespace shardplan
