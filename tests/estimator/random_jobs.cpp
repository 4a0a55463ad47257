#include "tests/estimator/random_jobs.h"

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan {

Job with_measured_copies(Job job) {
  if (job.cluster.gpu.times) {
    CopiesBetweenGpus& copies = job.cluster.gpu.times->copies;
    for (const Collective collective : {Collective::kAllGather, Collective::kSend}) {
      for (const std::int64_t ranks : {2, 4}) {
        copies.collectives.push_back({.collective = collective,
                                      .ranks = ranks,
                                      .seconds = {{.size = 1e4, .value = 8e-6},
                                                  {.size = 4e6, .value = 12e-6},
                                                  {.size = 1e9, .value = 1.5e-3}}});
      }
    }
    copies.beside = BesideRates{.products = 0.97, .collectives = 0.8};
  }
  return job;
}

namespace {

// For plans whose experts smaller machines part.
Job on_one_machine(Job job) {
  job.cluster.gpus_per_node = job.cluster.world_size();
  job.cluster.nodes = 1;
  return job;
}

// Muon's update where the plan may have it, divided over the ranks or not.
Job with_muon(const Job& job, const Plan& plan) {
  Job changed = job;
  changed.optimizer = plan.micro_batch % 2 == 0 ? OptimizerKind::kMuon : OptimizerKind::kDistMuon;
  return first_broken_rule(changed, plan) == nullptr ? changed : job;
}

}  // namespace

RandomJobs::RandomJobs(const Library& library, std::uint64_t seed)
    : cluster_(library.cluster("1x8-h200")), random_(seed) {
  for (const std::string& name : library.framework_names()) {
    // A third of all jobs else; they differ in little.
    if (!name.starts_with("deepspeed@") && name != "pytorch") {
      profiles_.push_back(library.framework(name));
    }
  }
}

std::int64_t RandomJobs::pick(std::initializer_list<std::int64_t> values) {
  std::uniform_int_distribution<std::size_t> index(0, values.size() - 1);
  return values.begin()[index(random_)];
}

bool RandomJobs::chance(double share) {
  return std::bernoulli_distribution(share)(random_);
}

void RandomJobs::add_experts(ModelSpec& model) {
  model.moe = {.num_experts = pick({4, 8, 16, 64}),
               .topk = pick({1, 2, 4}),
               .expert_ffn = pick({256, 512, 1536}),
               .shared_ffn = pick({0, 512, 2048}),
               .shared_gate = false,
               .router_bias = chance(0.2)};
  const std::int64_t dense = pick({0, 1, 2});
  const std::int64_t every = pick({1, 1, 2});
  for (std::int64_t i = dense; i < model.num_layers(); i += every) {
    model.layers[static_cast<std::size_t>(i)].is_moe = true;
  }
  model.num_mtp_layers = pick({0, 0, 0, 1});
}

ModelSpec RandomJobs::model() {
  ModelSpec model;
  model.name = "random";
  model.num_heads = pick({8, 16, 32, 64});
  model.head_dim = pick({64, 128});
  model.hidden = pick({512, 1024, 2048, 4096, 8192});
  model.ffn = pick({1024, 3072, 11008, 14336, 28672});
  model.vocab = pick({1000, 32000, 128256, 151936});
  model.num_kv_heads = pick({1, 2, 4, 8, 16, 32, 64});
  if (model.num_heads % model.num_kv_heads != 0) {
    model.num_kv_heads = model.num_heads;
  }
  model.layers.resize(static_cast<std::size_t>(pick({2, 4, 6, 8, 12, 16, 24, 32})));
  model.gated_ffn = !chance(0.1);
  model.tied_embeddings = chance(0.3);
  model.qkv_bias = chance(0.2);
  model.qk_norm = chance(0.2);
  model.norms_per_layer = chance(0.1) ? 4 : 2;
  if (chance(0.2)) {
    model.attention = AttentionKind::kMla;
    model.num_kv_heads = model.num_heads;
    model.qk_norm = false;
    model.mla = {.q_lora_rank = pick({0, 512, 1536}),
                 .kv_lora_rank = 512,
                 .qk_nope_head_dim = 128,
                 .qk_rope_head_dim = 64,
                 .v_head_dim = 128};
  }
  if (chance(0.4)) {
    add_experts(model);
  }
  return model;
}

Job RandomJobs::job(const FrameworkProfile& profile) {
  Job job;
  job.profile = profile;
  if (profile.memory_model == MemoryModel::kMegatron) {
    job.profile.swiglu = chance(0.2) ? SwigluKind::kUnfused : SwigluKind::kFused;
    job.profile.cross_entropy =
        chance(0.5) ? CrossEntropyKind::kTeFused : CrossEntropyKind::kUnfused;
    job.profile.gradient_accumulation_fusion = !chance(0.2);
    job.profile.overlap_grad_reduce = chance(0.5);
    job.profile.deallocate_pipeline_outputs = !chance(0.2);
    job.profile.fused_optimizer = !chance(0.2);
    if (!job.profile.fused_optimizer) {  // no Transformer Engine, nor its loss
      job.profile.cross_entropy = CrossEntropyKind::kUnfused;
    }
    job.profile.moe_imbalance_factor = chance(0.2) ? 1.5 : 1;
    job.profile.moe_capacity_factor = chance(0.2) ? 1.25 : 0;
  }
  job.model = model();
  if (profile.memory_model == MemoryModel::kTransformers) {
    tune(job);
  }
  if (profile.memory_model == MemoryModel::kTorchtitan) {
    make_llama3(job);
  }
  job.cluster = cluster_;
  job.cluster.nodes = pick({1, 1, 2, 4, 8});
  job.sequence_length = pick({1024, 2048, 4096, 8192, 32768});
  job.global_batch = job.cluster.world_size() * pick({1, 2, 4, 8});
  return job;
}

// Whole models in either type, or adapters on weights that may be quantized.
void RandomJobs::tune(Job& job) {
  job.profile.weights_dtype = chance(0.5) ? DType::kFp32 : DType::kBf16;
  if (chance(0.5)) {
    return;
  }
  job.adapters.rank = pick({8, 16, 64});
  for (bool& target : job.adapters.targets) { target = chance(0.7); }
  if (job.model.has_moe_layers()) {
    job.adapters.expert_targets = static_cast<ExpertTargets>(pick({0, 0, 1, 2}));
  }
  job.adapters.dropout = chance(0.3) ? 0.05 : 0;
  job.quantized = {.kind = static_cast<Quantization>(pick({0, 0, 1, 2, 3})),
                   .is_double = chance(0.5)};
}

Recompute RandomJobs::recompute() {
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
  for (const auto& module : kRecomputeModules) { recompute.modules.*module.value = chance(0.3); }
  return recompute;
}

Plan RandomJobs::plan(const Job& job) {
  Plan plan;
  plan.tp = pick({1, 1, 2, 4, 8});
  plan.cp = pick({1, 1, 1, 2, 4});
  plan.pp = pick({1, 1, 2, 4, 8});
  plan.ep = job.model.moe.num_experts > 0 ? pick({1, 2, 4, 8}) : 1;
  plan.etp = job.model.moe.num_experts > 0 ? pick({1, 1, 1, 2}) : 1;
  const bool slices_as_tp = job.profile.memory_model == MemoryModel::kMegatron ||
                            job.profile.memory_model == MemoryModel::kMegatronLocal;
  if (slices_as_tp && job.model.moe.num_experts > 0 && plan.ep == 1) {
    plan.etp = plan.tp;
  }
  plan.schedule = Schedule::kNone;
  if (plan.pp > 1) {
    plan.schedule = kSchedules[static_cast<std::size_t>(pick({1, 2, 2, 3, 3, 4, 5, 6}))].value;
    const bool interleaved = plan.schedule == Schedule::kInterleaved1F1B ||
                             plan.schedule == Schedule::kInterleavedZeroBubble;
    plan.vpp = plan.schedule == Schedule::kZbv ? 2 : interleaved ? pick({2, 3, 4}) : 1;
  }
  plan.zero = pick({0, 1, 1, 1, 2, 3});
  plan.dp_replicate = pick({1, 1, 1, 2});
  plan.micro_batch = pick({1, 1, 2, 4});
  plan.sequence_parallel = plan.tp > 1 && !chance(0.2);
  plan.recompute = recompute();
  plan.cp_method = kCpMethods[static_cast<std::size_t>(pick({0, 1, 2}))].value;
  plan.precision = kPrecisions[static_cast<std::size_t>(pick({0, 1, 1, 1, 1, 2, 3}))].value;
  plan.grad_dtype = chance(0.2) ? DType::kBf16 : DType::kFp32;
  if (chance(0.2)) {
    plan.exp_avg_dtype = DType::kBf16;
    plan.exp_avg_sq_dtype = DType::kBf16;
  }
  plan.moe_buffer_factor = chance(0.2) ? 1.5 : 1;
  return plan;
}

// torchtitan's only model here, and the choices of a plan that it leaves.
void RandomJobs::make_llama3(Job& job) {
  const ModelSpec drawn = job.model;
  job.model = {};
  job.model.name = drawn.name;
  job.model.family = drawn.family;
  job.model.hidden = drawn.num_heads * drawn.head_dim;
  job.model.ffn = drawn.ffn;
  job.model.vocab = drawn.vocab;
  job.model.num_heads = drawn.num_heads;
  job.model.num_kv_heads = drawn.num_kv_heads;
  job.model.head_dim = drawn.head_dim;
  job.model.layers.resize(drawn.layers.size());
  job.profile.compile = chance(0.3);
  job.profile.reshard_after_forward =
      kReshardAfterForward[static_cast<std::size_t>(pick({0, 0, 1, 2}))].value;
}

void RandomJobs::make_titan_plan(const Job& job, Plan& plan) {
  const bool alone = job.cluster.world_size() == 1;
  plan.zero = alone ? 0 : 3;
  plan.sequence_parallel = plan.tp > 1;
  plan.cp_method = CpMethod::kRing;
  plan.precision = Precision::kBf16;
  plan.grad_dtype = plan.exp_avg_dtype = plan.exp_avg_sq_dtype = DType::kFp32;
  plan.moe_buffer_factor = 1;
  plan.recompute = {};
  if (chance(0.3)) {
    plan.recompute.granularity = RecomputeGranularity::kFull;
  } else if (chance(0.5)) {
    plan.recompute.granularity = RecomputeGranularity::kSelective;
    plan.recompute.policy = chance(0.5) ? "every_second_layer" : "every_second_matmul";
  }
}

RandomCase RandomJobs::next(const FrameworkProfile& profile) {
  constexpr int kPlansPerJob = 50;
  while (true) {
    const Job drawn = job(profile);
    for (int i = 0; i < kPlansPerJob; ++i) {
      Plan candidate = plan(drawn);
      if (profile.memory_model == MemoryModel::kTorchtitan) {
        make_titan_plan(drawn, candidate);
      }
      const ValidityRule* const broken = first_broken_rule(drawn, candidate);
      const bool is_apart = broken != nullptr && broken->name == "experts_within_one_machine";
      if (broken != nullptr && !is_apart) {
        continue;  // most candidates: no job is copied for them
      }
      const Job asked = is_apart ? on_one_machine(drawn) : drawn;
      // fujii2024 rounds uneven splits up, which no schedule can time: left out.
      if ((!is_apart || first_broken_rule(asked, candidate) == nullptr) &&
          !layers_per_chunk(asked, candidate).empty()) {
        ++num_drawn_;
        return {.job = num_drawn_ % 3 == 0 ? with_muon(asked, candidate) : asked,
                .plan = candidate};
      }
    }
  }
}

Plan RandomJobs::next_plan(const Job& job, const Plan& near) {
  while (true) {
    Plan drawn = plan(job);
    if (job.profile.memory_model == MemoryModel::kTorchtitan) {
      make_titan_plan(job, drawn);
    }
    const bool keeps_grid = chance(0.7);
    if (keeps_grid) {
      drawn.tp = near.tp;
      drawn.cp = near.cp;
      drawn.ep = near.ep;
      drawn.etp = near.etp;
      drawn.pp = near.pp;
      drawn.vpp = near.vpp;
      drawn.schedule = near.schedule;
    }
    if (chance(0.5)) {
      drawn.recompute = near.recompute;
      drawn.micro_batch = near.micro_batch;
    }
    if (chance(0.2)) {
      drawn.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
    }
    if (chance(0.3) && drawn.pp * drawn.vpp > 1) {
      drawn.layers_per_chunk = uneven_layers(job, drawn.pp * drawn.vpp);
    }
    if (first_broken_rule(job, drawn) == nullptr && !layers_per_chunk(job, drawn).empty()) {
      return drawn;
    }
    if (chance(0.05)) {
      return near;
    }
  }
}

// Any split of the layers in which neighbours differ by at most one, the ends lighter.
std::vector<std::int64_t> RandomJobs::uneven_layers(const Job& job, std::int64_t chunks) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(chunks), 0);
  const std::int64_t first = pick({0, 1, 1, 2}) % chunks;
  for (std::int64_t i = 0; i < job.model.num_layers(); ++i) {
    ++layers[static_cast<std::size_t>((first + i) % chunks)];
  }
  return layers;
}

RandomCase RandomJobs::next() {
  std::uniform_int_distribution<std::size_t> index(0, profiles_.size() - 1);
  return next(profiles_[index(random_)]);
}

}  // namespace shardplan
