#include "estimator/plan/layer_partition.h"

#include <numeric>
#include <stdexcept>

#include "estimator/plan/schedule.h"

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
  const CountedEnds ends = job.profile.counted_ends();
  const std::int64_t slots = job.model.num_layers() + ends.embedding + ends.head;
  if (slots % chunks != 0 && !job.profile.layout.spreads_uneven_layers) {
    return {};
  }
  std::vector<std::int64_t> layers(static_cast<std::size_t>(chunks), slots / chunks);
  // What is left goes to the first chunks, one each.
  for (std::int64_t i = 0; i < slots % chunks; ++i) { ++layers[static_cast<std::size_t>(i)]; }
  layers.front() -= ends.embedding;
  layers.back() -= ends.head;
  return layers.front() < 0 || layers.back() < 0 ? std::vector<std::int64_t>{} : layers;
}

// Where nanotron puts the blocks behind the layers: stages.
struct DealtEnds {
  std::int64_t norm = 0;
  std::int64_t head = 0;
  std::int64_t cast = 0;
  std::int64_t loss = 0;
};

// nanotron models/base.py build_model: blocks in order, each on the rank of the last one, or on the
// next if the cost so far exceeds the shares of all ranks up to that one's; models/llama.py
// get_block_compute_costs: products of a layer and of the head, nothing for other blocks. So a head
// that is reached too early is followed by one rank for the cast and one for the loss. With
// puts_ends_last a rank that has just its share is full, and all that follows the layers is on
// the last one. `put_layer` is called with the stage of every layer.
template <class PutLayer>
DealtEnds deal_blocks(const Job& job, const Plan& plan, const PutLayer& put_layer) {
  const ModelSpec& model = job.model;
  const std::int64_t layer = model.hidden * (4 * model.num_heads * model.head_dim + 3 * model.ffn);
  const std::int64_t total = model.num_layers() * layer + model.vocab * model.hidden;
  const bool ends_are_last = job.profile.puts_ends_last();
  std::int64_t rank = 0;
  std::int64_t cost = 0;
  const auto place = [&](std::int64_t block_cost) {
    const std::int64_t placed = rank;
    const double share = static_cast<double>(rank + 1) / static_cast<double>(plan.pp);
    const double shares = static_cast<double>(total) * share;
    cost += block_cost;
    const double reached = static_cast<double>(cost);
    rank += (ends_are_last ? reached >= shares : reached > shares) ? 1 : 0;
    return placed;
  };
  place(0);  // embedding
  for (std::int64_t i = 0; i < model.num_layers(); ++i) { put_layer(place(layer)); }
  if (ends_are_last) {
    const std::int64_t last = plan.pp - 1;
    return {.norm = last, .head = last, .cast = last, .loss = last};
  }
  DealtEnds ends;
  ends.norm = place(0);
  ends.head = place(model.vocab * model.hidden);
  ends.cast = place(0);
  ends.loss = place(0);
  return ends;
}

DealtEnds dealt_ends(const Job& job, const Plan& plan) {
  return deal_blocks(job, plan, [](std::int64_t) {});
}

bool deals_by_cost(const Job& job, const Plan& plan) {
  return job.profile.layout.deals_blocks_by_cost && plan.layers_per_chunk.empty();
}

// Where the loss lies before the last stage, the first log of a step asks another stage for it
// (models/base.py, output_pp_rank; trainer.py, train_step_logs); a norm apart from its head is not
// modelled.
std::vector<std::int64_t> layers_by_cost(const Job& job, const Plan& plan) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(plan.pp), 0);
  const DealtEnds ends = deal_blocks(
      job, plan, [&](std::int64_t stage) { ++layers[static_cast<std::size_t>(stage)]; });
  const bool is_modelled = ends.loss == plan.pp - 1 && ends.norm == ends.head;
  return is_modelled ? layers : std::vector<std::int64_t>{};
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
  if (deals_by_cost(job, plan)) {
    return layers_by_cost(job, plan);
  }
  if (plan.layers_per_chunk.empty()) {
    return even_layers(job, plan);
  }
  return covers_the_model(job, plan) ? plan.layers_per_chunk : std::vector<std::int64_t>{};
}

std::int64_t head_stage(const Job& job, const Plan& plan) {
  return deals_by_cost(job, plan) ? dealt_ends(job, plan).head : plan.pp - 1;
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
                                .has_head = position == chunks - 1,
                                .has_cast = position == chunks - 1,
                                .has_loss = position == chunks - 1});
    first_layer += count;
  }
  if (deals_by_cost(job, plan)) {
    const DealtEnds ends = dealt_ends(job, plan);
    for (ModelChunk& chunk : partition.chunks) {
      chunk.has_head = chunk.pp_rank == ends.head;
      chunk.has_cast = chunk.pp_rank == ends.cast;
    }
  }
  return partition;
}

}  // namespace shardplan
