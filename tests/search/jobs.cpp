#include "tests/search/jobs.h"

#include <algorithm>
#include <string>
#include <vector>

#include "estimator/frameworks/pieces/memory_model.h"
#include "search/space/default_space.h"
#include "tests/measured_host.h"
#include "tests/time_constants.h"

namespace shardplan {

namespace {

ClusterSpec cluster_of(std::int64_t nodes, std::int64_t gpus_per_node) {
  ClusterSpec cluster;
  cluster.name = "test";
  cluster.gpu.constants = library_constants();
  cluster.gpu.id = "H100-SXM-80GB";
  cluster.gpu.compute_capability = 90;
  cluster.gpu.num_sms = 132;
  cluster.gpu.nominal_memory_bytes = 80'000'000'000;
  cluster.gpu.memory_bytes = 84'978'434'048;
  cluster.gpu.bf16_flops_per_s = 989.4e12;
  cluster.gpu.fp16_flops_per_s = 989.4e12;
  cluster.gpu.fp8_flops_per_s = 1978.9e12;
  cluster.gpu.fp32_flops_per_s = 66.9e12;
  cluster.gpu.memory_bytes_per_s = 3.35e12;
  cluster.gpu.nvlink_bytes_per_s = 450e9;
  cluster.gpu.pcie_bytes_per_s = 64e9;
  cluster.gpus_per_node = gpus_per_node;
  cluster.nodes = nodes;
  cluster.nvlink_domain = gpus_per_node;
  cluster.inter_node_bytes_per_s = 50e9;
  cluster.intra_node_latency_s = 5e-6;
  cluster.inter_node_latency_s = 10e-6;
  return cluster;
}

ModelSpec llama(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads) {
  ModelSpec model;
  model.name = "llama";
  model.family = "llama";
  model.hidden = hidden;
  model.ffn = ffn;
  model.vocab = 128256;
  model.num_heads = heads;
  model.num_kv_heads = 8;
  model.head_dim = hidden / heads;
  model.layers.assign(static_cast<std::size_t>(layers), LayerSpec{});
  return model;
}

std::int64_t one_of(std::mt19937_64& random, const std::vector<std::int64_t>& values) {
  return values[random() % values.size()];
}

void add_experts(ModelSpec& model, std::mt19937_64& random) {
  model.moe.num_experts = one_of(random, {4, 6, 8});
  model.moe.topk = one_of(random, {1, 2});
  model.moe.expert_ffn = one_of(random, {256, 512});
  model.moe.shared_ffn = one_of(random, {0, 256});
  for (std::size_t layer = random() % 2; layer < model.layers.size(); ++layer) {
    model.layers[layer].is_moe = true;
  }
}

// Keeps the first `fixed` values and up to `more` of the others.
template <class Value>
std::vector<Value> some_of(std::mt19937_64& random, std::vector<Value> values, std::size_t fixed,
                           std::size_t more) {
  const auto rest = values.begin() + static_cast<std::ptrdiff_t>(std::min(fixed, values.size()));
  std::shuffle(rest, values.end(), random);
  const std::size_t kept = std::min(values.size(), fixed + more);
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(kept), values.end());
  return values;
}

// Two values on a few of the axes that the default space leaves at one.
void open_more_axes(const Job& job, SearchSpace& space, std::mt19937_64& random) {
  const SearchSpace wide = wide_space(job);
  const auto open = [&](auto& axis, const auto& all) {
    if (random() % 6 == 0) {
      axis = some_of(random, all, 1, 1);
    }
  };
  open(space.precision, wide.precision);
  open(space.moe_buffer_factor, wide.moe_buffer_factor);
  open(space.rank_order, wide.rank_order);
  open(space.dp_replicate, wide.dp_replicate);
  open(space.grad_dtype, wide.grad_dtype);
  open(space.master_dtype, wide.master_dtype);
  open(space.exp_avg_dtype, wide.exp_avg_dtype);
  open(space.exp_avg_sq_dtype, wide.exp_avg_sq_dtype);
  open(space.offload, wide.offload);
  open(space.recompute, wide.recompute);
  if (random() % 8 == 0) {
    space.dp = {0, 2, 4};
  }
}

}  // namespace

Job llama_405b_job(std::int64_t nodes) {
  Job job;
  job.model = llama(126, 16384, 53248, 128);
  job.cluster = cluster_of(nodes, 8);
  job.profile.name = "megatron";
  measure_host(job.profile);
  job.sequence_length = 8192;
  job.global_batch = 2048;
  return job;
}

Job llama_8b_job() {
  Job job;
  job.model = llama(32, 4096, 14336, 32);
  job.cluster = cluster_of(1, 8);
  job.cluster.gpu.nominal_memory_bytes = 141'000'000'000;
  job.cluster.gpu.memory_bytes = 150'109'880'320;
  job.cluster.gpu.memory_bytes_per_s = 4.8e12;
  job.profile.name = "megatron";
  measure_host(job.profile);
  job.sequence_length = 8192;
  job.global_batch = 64;
  return job;
}

Job random_small_job(std::mt19937_64& random) {
  Job job;
  job.model = llama(one_of(random, {2, 3, 4, 6, 7, 8, 10}), one_of(random, {256, 512}),
                    one_of(random, {512, 1024}), one_of(random, {4, 8}));
  job.model.num_kv_heads = one_of(random, {2, 4});
  job.model.vocab = one_of(random, {1000, 4096});
  set_measured_framework(job.profile, kMemoryModels[random() % kMemoryModels.size()].value);
  job.profile.name = std::string(name_of(job.profile.memory_model));
  const bool is_plain = job.profile.memory_model == MemoryModel::kTorchtitan;
  job.model.tied_embeddings = random() % 2 == 0 && !is_plain;
  const bool has_experts_modelled = !is_plain &&
                                    job.profile.memory_model != MemoryModel::kNanotron &&
                                    job.profile.memory_model != MemoryModel::kDeepspeed &&
                                    job.profile.memory_model != MemoryModel::kTransformers;
  if (random() % 3 == 0 && has_experts_modelled) {
    add_experts(job.model, random);
  }
  job.cluster = cluster_of(one_of(random, {1, 2}), one_of(random, {2, 4, 6, 8}));
  job.sequence_length = one_of(random, {1024, 2048});
  job.global_batch = one_of(random, {16, 24, 48});
  const bool is_megatron = job.profile.memory_model == MemoryModel::kMegatron ||
                           job.profile.memory_model == MemoryModel::kMegatronLocal;
  if (is_megatron && random() % 4 == 0) {
    job.optimizer = random() % 2 == 0 ? OptimizerKind::kMuon : OptimizerKind::kDistMuon;
  }
  return job;
}

SearchSpace random_small_space(const Job& job, std::mt19937_64& random) {
  SearchSpace space = default_space(job);
  space.tp = some_of(random, space.tp, 0, 2);
  space.cp = some_of(random, space.cp, 1, 1);
  space.ep = some_of(random, space.ep, 1, 1);
  space.etp = some_of(random, space.etp, 1, 1);
  space.pp = some_of(random, space.pp, 0, 2);
  space.vpp = some_of(random, space.vpp, 1, 1);
  space.dp_replicate = some_of<std::int64_t>(random, {1, 2}, 1, random() % 2);
  space.zero = some_of(random, space.zero, 0, 1 + random() % 2);
  space.micro_batch = some_of(random, space.micro_batch, 0, 1 + random() % 2);
  space.schedule = some_of(random, space.schedule, 1, 2);
  space.cp_method = some_of(random, space.cp_method, 1, random() % 2);
  space.recompute = some_of(random, space.recompute, 0, 2);
  if (random() % 2 == 0) {
    space.rank_order.push_back({Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp});
  }
  space.uneven_layers = random() % 2 == 0;
  open_more_axes(job, space, random);
  return space;
}

}  // namespace shardplan
