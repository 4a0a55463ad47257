#include "tests/validator/random_layouts.h"
#include "estimator/answer/why_invalid.h"

#include <cmath>
#include <set>

namespace shardplan {
namespace {

Recompute selective(const RecomputeModules& modules) {
  return {.granularity = RecomputeGranularity::kSelective, .modules = modules};
}

Schedule random_schedule(Chooser& choose, const Plan& plan) {
  if (plan.pp == 1) {
    return Schedule::kNone;
  }
  if (plan.vpp > 1) {
    return Schedule::kInterleaved1F1B;
  }
  return choose.one_of<Schedule>({Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1});
}

Layout random_layout(Chooser& choose) {
  ModelSpec model =
      choose.one_of<ModelSpec>({tiny_model(), tiny_model(), wide_model(), tiny_moe(), wide_moe()});
  model.tied_embeddings = choose.one_of<int>({0, 0, 1}) == 1;
  const bool has_experts = model.moe.num_experts > 0;
  Plan plan;
  plan.tp = choose.one_of<std::int64_t>({1, 1, 2, 4, 8});
  plan.cp = choose.one_of<std::int64_t>({1, 1, 2, 4});
  plan.pp = choose.one_of<std::int64_t>({1, 2, 2, 4});
  plan.vpp = plan.pp == 1 ? 1 : choose.one_of<std::int64_t>({1, 1, 2});
  const std::int64_t dp = choose.one_of<std::int64_t>({1, 2, 2, 4});
  if (has_experts) {
    plan.ep = choose.one_of<std::int64_t>({1, 2, 4, 8});
    plan.etp = choose.one_of<std::int64_t>({1, 1, 2, 4});
    plan.moe_buffer_factor = static_cast<double>(plan.ep);  // holds whatever the router does
  }
  plan.zero = choose.one_of<std::int64_t>({0, 1, 2, 3});
  plan.dp_replicate = plan.zero == 0 ? 1 : choose.one_of<std::int64_t>({1, 2});
  plan.micro_batch = choose.one_of<std::int64_t>({1, 2});
  plan.grad_dtype = choose.one_of<DType>({DType::kFp32, DType::kFp32, DType::kBf16});
  plan.exp_avg_dtype = choose.one_of<DType>({DType::kFp32, DType::kBf16});
  plan.exp_avg_sq_dtype = plan.exp_avg_dtype;
  plan.sequence_parallel = plan.tp > 1 && choose.one_of<int>({0, 1, 1}) == 1;
  plan.cp_method = choose.one_of<CpMethod>({CpMethod::kAllGather, CpMethod::kRing});
  plan.recompute = choose.one_of(recompute_choices(has_experts));
  plan.schedule = random_schedule(choose, plan);
  if (choose.one_of<int>({0, 0, 1}) == 1) {
    plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kTp, Dimension::kCp};
  }
  Job job = tiny_job(model, plan.tp * plan.cp * plan.pp * dp);
  job.profile.vocab_multiple = choose.one_of<std::int64_t>({1, 8});
  return {.job = job, .plan = plan};
}

}  // namespace

std::string Layout::text() const {
  return job.model.name + (job.model.tied_embeddings ? " tied" : "") + " ep" +
         std::to_string(plan.ep) + " etp" + std::to_string(plan.etp) + text_of(plan);
}

const std::vector<Recompute>& recompute_choices(bool has_experts) {
  using enum RecomputeGranularity;
  static const std::vector<Recompute> dense = {
      {},
      selective({.layernorm = true}),
      selective({.core_attn = true}),
      selective({.mlp = true}),
      selective({.core_attn = true, .layernorm = true, .mlp = true}),
      {.granularity = kFull},
      {.granularity = kFull, .num_layers = 2},
      {.granularity = kFull, .method = RecomputeMethod::kBlock, .num_layers = 1},
  };
  static const std::vector<Recompute> experts = {
      {},
      selective({.moe_act = true}),
      selective({.moe = true}),
      selective({.shared_experts = true}),
      selective({.layernorm = true, .moe = true}),
      selective({.core_attn = true, .layernorm = true, .moe_act = true, .shared_experts = true}),
      {.granularity = kFull},
      {.granularity = kFull, .num_layers = 2},
      {.granularity = kFull, .method = RecomputeMethod::kBlock, .num_layers = 1},
  };
  return has_experts ? experts : dense;
}

std::vector<Layout> random_layouts(std::uint64_t seed, std::int64_t count) {
  Chooser choose(seed);
  std::set<std::string> seen;
  std::vector<Layout> layouts;
  while (static_cast<std::int64_t>(layouts.size()) < count) {
    const Layout layout = random_layout(choose);
    if (layout.job.cluster.world_size() <= 16 && !why_invalid(layout.job, layout.plan) &&
        !why_not_lowered(layout.job, layout.plan) && seen.insert(layout.text()).second) {
      layouts.push_back(layout);
    }
  }
  return layouts;
}

std::map<std::string, std::int64_t> feature_counts(const std::vector<Layout>& layouts) {
  std::map<std::string, std::int64_t> counts;
  for (const Layout& layout : layouts) {
    const Plan& plan = layout.plan;
    const auto count = [&](const std::string& feature, bool is_used) {
      counts[feature] += is_used ? 1 : 0;
    };
    const std::int64_t dp = div_exact(layout.job.cluster.world_size(), plan.tp * plan.cp * plan.pp);
    const bool rings = plan.cp > 1 && plan.cp_method == CpMethod::kRing;
    const bool has_experts = layout.job.model.moe.num_experts > 0;
    const std::int64_t dimensions = (plan.tp > 1 ? 1 : 0) + (plan.cp > 1 ? 1 : 0) +
                                    (plan.pp > 1 ? 1 : 0) + (dp > 1 ? 1 : 0) +
                                    (plan.ep > 1 ? 1 : 0);
    count("tp with sp", plan.sequence_parallel);
    count("tp without sp", plan.tp > 1 && !plan.sequence_parallel);
    count("cp by all-gather", plan.cp > 1 && !rings);
    count("cp by ring", rings);
    count("ring of 4", rings && plan.cp == 4);
    count("ring, micro_batch 2", rings && plan.micro_batch == 2);
    count("ring, tp", rings && plan.tp > 1);
    count("ring, pp", rings && plan.pp > 1);
    count("pp", plan.pp > 1);
    for (const auto& schedule : kSchedules) {
      if (plan.pp > 1 && plan.schedule == schedule.value) {
        count(std::string(schedule.name), true);
      }
    }
    const bool splits = plan.schedule == Schedule::kZbH1;
    count("zb_h1, tp with sp", splits && plan.sequence_parallel);
    count("zb_h1, cp", splits && plan.cp > 1);
    count("zb_h1, zero", splits && plan.zero > 0);
    count("zb_h1, experts", splits && has_experts);
    count("zb_h1, recompute", splits && plan.recompute != Recompute{});
    count("dp", dp > 1);
    count("dp_replicate", plan.dp_replicate > 1);
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      count("zero " + std::to_string(zero), plan.zero == zero && dp > 1);
    }
    const bool shards_weights = plan.zero > 1 && dp > 1;
    count("zero 2 or 3, pp", shards_weights && plan.pp > 1);
    count("zero 2 or 3, cp", shards_weights && plan.cp > 1);
    count("zero 2 or 3, recompute", shards_weights && plan.recompute != Recompute{});
    count("bf16 gradients", plan.grad_dtype == DType::kBf16);
    count("ep", plan.ep > 1);
    count("etp", plan.etp > 1);
    count("ep, etp", plan.ep > 1 && plan.etp > 1);
    count("ep, tp", plan.ep > 1 && plan.tp > 1);
    count("ep, cp", plan.ep > 1 && plan.cp > 1);
    count("ep, pp", plan.ep > 1 && plan.pp > 1);
    count("experts, interleaved", has_experts && plan.vpp > 1);
    count("experts, dp_replicate", has_experts && plan.dp_replicate > 1);
    const bool divides_experts = has_experts && expert_shard_size(layout.job, plan) > 1;
    count("zero 2, divided experts", plan.zero == 2 && divides_experts);
    count("zero 3, divided experts", plan.zero == 3 && divides_experts);
    count("zero 3, whole experts", plan.zero == 3 && plan.ep > 1 && !divides_experts);
    count("experts, ring", has_experts && rings);
    for (const auto& granularity : kRecomputeGranularities) {
      count("recompute " + std::string(granularity.name),
            plan.recompute.granularity == granularity.value);
    }
    count("recompute block", plan.recompute.method == RecomputeMethod::kBlock);
    count("tied over stages", layout.job.model.tied_embeddings && plan.pp > 1);
    count("another rank order", plan.rank_order != Plan{}.rank_order);
    count("16 ranks", layout.job.cluster.world_size() == 16);
    count("three dimensions", dimensions >= 3);
    count("four dimensions", dimensions >= 4);
  }
  return counts;
}

const ReferenceStep& reference_of(const Job& job) {
  static std::map<std::pair<std::string, bool>, ReferenceStep> steps;
  const auto key = std::pair(job.model.name, job.model.tied_embeddings);
  if (!steps.contains(key)) {
    steps[key] = reference_step(job.model, initial_tensors(job.model, 7), random_batch(job, 3), {});
  }
  return steps.at(key);
}

template <class T>
std::string difference_from_reference(const Layout& layout, const Tolerance& tolerance) {
  const std::vector<Program> programs = lower_all(layout.job, layout.plan);
  const Problems problems = problems_of(programs);
  if (!problems.empty()) {
    return problems.front();
  }
  HostBackend<T> backend(programs, DeadMemory::kPoisoned);
  backend.load(initial_tensors(layout.job.model, 7));
  const double loss = backend.step(random_batch(layout.job, 3), 1e-3);
  const ReferenceStep& expected = reference_of(layout.job);
  const double apart = std::abs(loss / expected.loss - 1);
  if (!(apart < tolerance.loss)) {
    return "loss " + std::to_string(loss) + " is apart by " + std::to_string(apart);
  }
  const double worst = worst_relative_difference(backend.gradients(), expected.gradients);
  return worst < tolerance.gradients ? "" : "gradients are apart by " + std::to_string(worst);
}

template std::string difference_from_reference<float>(const Layout&, const Tolerance&);
template std::string difference_from_reference<double>(const Layout&, const Tolerance&);

}  // namespace shardplan
