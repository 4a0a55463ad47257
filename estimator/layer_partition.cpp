#include "estimator/layer_partition.h"

#include <numeric>
#include <stdexcept>

#include "estimator/schedule.h"

namespace shardplan {
namespace {

ScheduleShape placement(const Plan& plan) {
  return {.schedule = plan.schedule, .pp = plan.pp, .vpp = plan.vpp};
}

bool covers_the_model(const Job& job, const Plan& plan) {
  const std::vector<std::int64_t>& layers = plan.layers_per_chunk;
  for (const std::int64_t count : layers) {
    if (count < 0) {
      return false;
    }
  }
  return static_cast<std::int64_t>(layers.size()) == plan.pp * plan.vpp &&
         std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) == job.model.num_layers();
}

// Megatron-LM --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split
// (core/transformer/transformer_block.py, get_num_layers_to_build): the embedding and the loss
// count as one layer each, so the end chunks hold one transformer layer less.
std::vector<std::int64_t> even_layers(const Job& job, const Plan& plan) {
  const std::int64_t chunks = plan.pp * plan.vpp;
  const bool titan = job.profile.memory_model == MemoryModel::kTorchtitan;
  const bool staged = !titan || chunks > 1;
  const std::int64_t embedding = staged && job.profile.account_for_embedding_in_split ? 1 : 0;
  const std::int64_t loss = staged && job.profile.account_for_loss_in_split ? 1 : 0;
  const std::int64_t slots = job.model.num_layers() + embedding + loss;
  if (slots % chunks != 0 && !titan) {
    return {};
  }
  std::vector<std::int64_t> layers(static_cast<std::size_t>(chunks), slots / chunks);
  // torchtitan distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part: what is left goes
  // to the first chunks, one each.
  for (std::int64_t i = 0; i < slots % chunks; ++i) { ++layers[static_cast<std::size_t>(i)]; }
  layers.front() -= embedding;
  layers.back() -= loss;
  return layers.front() < 0 || layers.back() < 0 ? std::vector<std::int64_t>{} : layers;
}

// nanotron models/base.py build_model: blocks in order, to the next rank once their cumulative cost
// exceeds this rank's share; models/llama.py get_block_compute_costs: products of a layer and of
// the head.
std::vector<std::int64_t> layers_by_cost(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const std::int64_t layer = model.hidden * (4 * model.num_heads * model.head_dim + 3 * model.ffn);
  const std::int64_t total = model.num_layers() * layer + model.vocab * model.hidden;
  std::vector<std::int64_t> layers(static_cast<std::size_t>(plan.pp), 0);
  std::int64_t rank = 0;
  for (std::int64_t placed = 1; placed <= model.num_layers(); ++placed) {
    ++layers[static_cast<std::size_t>(rank)];
    const bool full = placed * layer > total / plan.pp * (rank + 1);
    rank += full && rank + 1 < plan.pp ? 1 : 0;
  }
  return layers;
}

}  // namespace

std::int64_t pp_rank_of_chunk(const Plan& plan, std::int64_t position) {
  return rank_of_position(placement(plan), position);
}

std::int64_t local_chunk_of(const Plan& plan, std::int64_t position) {
  return local_chunk_of_position(placement(plan), position);
}

std::int64_t position_of_chunk(const Plan& plan, std::int64_t pp_rank, std::int64_t local_chunk) {
  return position_of(placement(plan), pp_rank, local_chunk);
}

std::vector<std::int64_t> layers_per_chunk(const Job& job, const Plan& plan) {
  if (plan.layers_per_chunk.empty() && job.profile.memory_model == MemoryModel::kNanotron) {
    return layers_by_cost(job, plan);
  }
  if (plan.layers_per_chunk.empty()) {
    return even_layers(job, plan);
  }
  return covers_the_model(job, plan) ? plan.layers_per_chunk : std::vector<std::int64_t>{};
}

LayerPartition partition_layers(const Job& job, const Plan& plan) {
  const std::vector<std::int64_t> layers = layers_per_chunk(job, plan);
  if (layers.empty()) {
    throw std::logic_error("partition_layers: the layers do not fill the chunks");
  }
  LayerPartition partition;
  std::int64_t first_layer = 0;
  const std::int64_t chunks = plan.pp * plan.vpp;
  for (std::int64_t position = 0; position < chunks; ++position) {
    const std::int64_t count = layers[static_cast<std::size_t>(position)];
    partition.chunks.push_back({.pp_rank = pp_rank_of_chunk(plan, position),
                                .local_chunk = local_chunk_of(plan, position),
                                .first_layer = first_layer,
                                .num_layers = count,
                                .has_embedding = position == 0,
                                .has_head = position == chunks - 1});
    first_layer += count;
  }
  return partition;
}

}  // namespace shardplan
