#include "tests/validator/lower/random_plans.h"

#include <algorithm>
#include <array>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/rank_grid.h"
#include "validator/lower/lower.h"

namespace shardplan {
namespace {

struct Widths {
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};
// Two tiny ones with odd sizes, then Llama 3 1B, 8B, 70B, 405B and Llama 2 13B.
constexpr std::array<Widths, 8> kWidths = {{
    {16, 24, 29, 4, 2, 4},
    {24, 40, 101, 8, 8, 6},
    {40, 16, 61, 8, 4, 10},
    {2048, 8192, 128256, 32, 8, 64},
    {4096, 14336, 128256, 32, 8, 128},
    {5120, 13824, 32000, 40, 40, 128},
    {8192, 28672, 128256, 64, 8, 128},
    {16384, 53248, 128256, 128, 8, 128},
}};

std::string field(const std::string& name, std::int64_t value) {
  return " " + name + " " + std::to_string(value);
}

}  // namespace

std::string RandomPlan::text() const {
  const ModelSpec& m = job.model;
  std::string modules;
  for (const auto& module : kRecomputeModules) {
    modules += plan.recompute.modules.*module.value ? " " + std::string(module.name) : "";
  }
  return field("hidden", m.hidden) + field("ffn", m.ffn) + field("layers", m.num_layers()) +
         field("experts", m.moe.num_experts) + field("topk", m.moe.topk) +
         field("expert_ffn", m.moe.expert_ffn) + field("shared_ffn", m.moe.shared_ffn) +
         (m.tied_embeddings ? " tied" : "") + field("world", job.cluster.world_size()) +
         field("s", job.sequence_length) + field("batch", job.global_batch) +
         field("chunks", job.profile.cross_entropy_chunks) +
         field("piece", job.profile.tensor_parallel_chunk_tokens) + field("tp", plan.tp) +
         (plan.sequence_parallel ? " sp" : "") + field("ep", plan.ep) + field("etp", plan.etp) +
         field("cp", plan.cp) + " " + std::string(name_of(plan.cp_method)) + field("pp", plan.pp) +
         field("vpp", plan.vpp) + " " + std::string(name_of(plan.schedule)) +
         field("replicate", plan.dp_replicate) + field("zero", plan.zero) +
         field("micro_batch", plan.micro_batch) + " " + std::string(name_of(plan.precision)) +
         " recompute " + std::string(name_of(plan.recompute.granularity)) + " " +
         std::string(name_of(plan.recompute.method)) + field("per", plan.recompute.num_layers) +
         modules;
}

std::int64_t RandomPlans::pick(std::initializer_list<std::int64_t> values) {
  std::uniform_int_distribution<std::size_t> index(0, values.size() - 1);
  return values.begin()[index(random_)];
}

bool RandomPlans::chance(double share) {
  return std::bernoulli_distribution(share)(random_);
}

ModelSpec RandomPlans::model() {
  const Widths& w = kWidths[static_cast<std::size_t>(pick({0, 0, 1, 1, 2, 3, 4, 5, 6, 7}))];
  ModelSpec model;
  model.name = "random";
  model.hidden = w.hidden;
  model.ffn = w.ffn;
  model.vocab = w.vocab;
  model.num_heads = w.heads;
  model.num_kv_heads = w.kv_heads;
  model.head_dim = w.head_dim;
  model.tied_embeddings = chance(0.3);
  if (chance(0.4)) {
    model.moe = {.num_experts = pick({4, 8, 64}),
                 .topk = pick({1, 2, 3}),
                 .expert_ffn = pick({8, 12, 768}),
                 .shared_ffn = pick({0, 0, 8, 1536})};
  }
  return model;
}

Recompute RandomPlans::recompute() {
  Recompute recompute;
  if (chance(0.4)) {
    return recompute;
  }
  if (chance(0.5)) {
    recompute.granularity = RecomputeGranularity::kFull;
    recompute.method = chance(0.5) ? RecomputeMethod::kUniform : RecomputeMethod::kBlock;
    recompute.num_layers = pick({1, 1, 2, 3});
    return recompute;
  }
  recompute.granularity = RecomputeGranularity::kSelective;
  for (const auto& module : kRecomputeModules) { recompute.modules.*module.value = chance(0.4); }
  return recompute;
}

Plan RandomPlans::plan(const ModelSpec& model) {
  Plan plan;
  plan.tp = pick({1, 1, 2, 4, 8});
  plan.cp = pick({1, 1, 1, 2, 4});
  plan.pp = pick({1, 1, 2, 3, 4, 8, 16});
  plan.schedule = Schedule::kNone;
  if (plan.pp > 1) {
    plan.schedule = kSchedules[static_cast<std::size_t>(pick({1, 2, 2, 3, 3, 4, 4}))].value;
    const bool interleaved = plan.schedule == Schedule::kInterleaved1F1B ||
                             plan.schedule == Schedule::kInterleavedZeroBubble;
    plan.vpp = plan.schedule == Schedule::kZbv ? 2 : interleaved ? pick({2, 3}) : 1;
  }
  plan.zero = pick({0, 1, 1, 2, 3, 3});
  plan.dp_replicate = pick({1, 1, 1, 2});
  plan.micro_batch = pick({1, 1, 2, 3});
  plan.sequence_parallel = plan.tp > 1 && !chance(0.3);
  plan.recompute = recompute();
  plan.cp_method = chance(0.5) ? CpMethod::kRing : CpMethod::kAllGather;
  plan.precision = chance(0.2) ? Precision::kFp8 : Precision::kBf16;
  plan.grad_dtype = chance(0.2) ? DType::kBf16 : DType::kFp32;
  plan.exp_avg_dtype = chance(0.2) ? DType::kBf16 : DType::kFp32;
  plan.exp_avg_sq_dtype = chance(0.2) ? DType::kBf16 : DType::kFp32;
  if (model.moe.num_experts > 0) {
    plan.ep = pick({1, 2, 4});
    plan.etp = pick({1, 1, 2});
    plan.moe_buffer_factor = plan.ep > 1 && chance(0.5) ? 1.234567 : 1;
  }
  return plan;
}

Job RandomPlans::job_of(const ModelSpec& model, Plan& plan) {
  Job job;
  job.model = model;
  const std::int64_t chunks = plan.pp * plan.vpp;
  job.model.layers.resize(static_cast<std::size_t>(chunks * pick({1, 1, 2, 3})));
  if (chance(0.2)) {
    // Uneven: one layer moves from the last chunk to the first.
    const std::int64_t per_chunk = job.model.num_layers() / chunks;
    if (per_chunk > 1 && chunks > 1) {
      plan.layers_per_chunk.assign(static_cast<std::size_t>(chunks), per_chunk);
      plan.layers_per_chunk.front() += 1;
      plan.layers_per_chunk.back() -= 1;
    }
  }
  if (model.moe.num_experts > 0) {
    const std::int64_t first = pick({0, 0, 1});
    const std::int64_t every = pick({1, 1, 2});
    for (std::int64_t i = first; i < job.model.num_layers(); i += every) {
      job.model.layers[static_cast<std::size_t>(i)].is_moe = true;
    }
  }
  const std::int64_t replicas = pick({1, 2, 4, 16, 64});
  const std::int64_t world = plan.tp * plan.cp * plan.pp * replicas;
  job.cluster.gpus_per_node = world % 8 == 0 ? 8 : world;
  job.cluster.nodes = world / job.cluster.gpus_per_node;
  job.cluster.gpu.compute_capability = 90;
  job.profile.name = "native";
  set_framework(job.profile, MemoryModel::kNative);
  job.profile.allocator = AllocatorKind::kStaticArenas;
  job.profile.cross_entropy = CrossEntropyKind::kChunked;
  job.profile.cross_entropy_chunks = pick({1, 2, 3, 8, 64});
  job.profile.vocab_multiple = pick({1, 2, 128});
  job.profile.deterministic_attention = chance(0.2);
  job.profile.overlap_grad_reduce = chance(0.5);
  job.cluster.gpu.compute_capability = pick({80, 90});
  const bool is_tiny = model.hidden < 1000;
  job.sequence_length = is_tiny ? pick({16, 32, 48, 64, 192}) : pick({1024, 4096, 8192});
  if (chance(0.4)) {
    // A window of one key leaves a ring no blocks, whose memory the estimate counts.
    const std::int64_t shortest = plan.cp_method == CpMethod::kRing ? 2 : 1;
    const std::int64_t every = pick({1, 1, 2});
    for (std::int64_t i = 0; i < job.model.num_layers(); i += every) {
      job.model.layers[static_cast<std::size_t>(i)].attention_window =
          is_tiny ? pick({shortest, 5, 40}) : pick({100, 1000, 1025, 4096});
    }
  }
  job.global_batch = replicas * plan.micro_batch * pick({1, 2, 3, plan.pp, plan.pp + 2});
  job.profile.tensor_parallel_chunk_tokens = is_tiny ? pick({1, 7, 16}) : pick({1000, 4096});
  return job;
}

RandomPlan RandomPlans::next() {
  while (true) {
    const ModelSpec drawn = model();
    Plan candidate = plan(drawn);
    const Job job = job_of(drawn, candidate);
    if (!why_invalid(job, candidate) && !why_not_lowered(job, candidate)) {
      return {.job = job, .plan = candidate};
    }
  }
}

std::vector<std::int64_t> RandomPlans::ranks_of(const RandomPlan& drawn) {
  const Plan& plan = drawn.plan;
  std::vector<std::int64_t> stages = {0, plan.pp - 1};
  stages.push_back(std::uniform_int_distribution<std::int64_t>(0, plan.pp - 1)(random_));
  std::ranges::sort(stages);
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  std::vector<std::int64_t> ranks;
  for (const std::int64_t stage : stages) {
    const std::int64_t data = data_parallel_size(drawn.job, plan);
    ranks.push_back(rank_of(drawn.job, plan,
                            {.pp = stage,
                             .dp = chance(0.5) ? 0 : data - 1,
                             .cp = chance(0.5) ? 0 : plan.cp - 1,
                             .tp = chance(0.5) ? 0 : plan.tp - 1}));
  }
  return ranks;
}

}  // namespace shardplan
