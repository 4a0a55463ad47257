// Kinds of chunks, their work on one microbatch, and what every kind of rank has of it.
// estimate_step_time makes them for one plan; search keeps them, so that both have the same numbers
// to the last bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimator/time/block_time.h"
#include "estimator/time/pipeline_time.h"
#include "estimator/time/update_times.h"

namespace shardplan {

// Chunks with the same kinds of layers in the same order and the same ends of the model are alike.
struct ChunkKind {
  std::int64_t num_layers = 0;
  std::size_t num_kinds = 0;  // of the model's layers
  // By number of layers and layer kind: how many of the kind are among so many first layers.
  std::vector<std::int64_t> counts = {};
  bool is_first = false;  // of the model: embedding
  bool has_head = false;  // head, multi-token prediction
  bool has_cast = false;  // of logits, with the head where a framework never parts them
  bool has_loss = false;  // likewise
  friend bool operator==(const ChunkKind&, const ChunkKind&) = default;

  std::span<const std::int64_t> first_layers(std::int64_t count) const {
    return std::span(counts).subspan(static_cast<std::size_t>(count) * num_kinds, num_kinds);
  }
  std::span<const std::int64_t> layers() const { return first_layers(num_layers); }
  // Those that recomputation may replay: full recomputation by blocks takes the first ones.
  std::span<const std::int64_t> replayed(const Recompute& recompute) const;
};

// Depends on pp, vpp, the layers of the chunks and the placement of the schedule.
struct StepLayout {
  std::vector<ChunkKind> chunks;
  PipelineLayout pipeline;
};
StepLayout step_layout(const Job& job, const Plan& plan, const LayerKinds& kinds);

// What recomputation adds to one microbatch.
struct ReplaySeconds {
  double recompute_s = 0;
  double host_s = 0;

  void add(std::int64_t count, const ReplaySeconds& replay) {
    recompute_s += static_cast<double>(count) * replay.recompute_s;
    host_s += static_cast<double>(count) * replay.host_s;
  }
};
// Of one chunk; `times` have what every kind of block replays.
ReplaySeconds chunk_replay(const Job& job, const Recompute& recompute, const ChunkKind& chunk,
                           const ModelTimes& times);

// Sums whose order decides their last bits: what a ChunkTime is added up from.
struct PlainChunkTime {
  double forward_s = 0;
  double backward_input_s = 0;  // without what stands below
  double backward_host_s = 0;
  double backward_send_s = 0;
  double backward_weight_s = 0;

  ChunkTime with(const ReplaySeconds& replay) const {
    return {.forward_s = forward_s,
            .backward_input_s = backward_input_s + replay.recompute_s + backward_host_s +
                                replay.host_s + backward_send_s,
            .backward_weight_s = backward_weight_s};
  }
};

// One microbatch in one chunk, or summed over the chunks of one rank: without what recomputation
// adds, with the exposed sends of activations and of gradients, what the host does around them, and
// what it waits for as it receives.
struct ChunkWork {
  BlockTime blocks;
  double forward_send_s = 0;
  double backward_send_s = 0;

  PlainChunkTime plain_time() const;
};

// What is sent of a microbatch to a neighbouring stage, as far as it stays visible.
struct SendTimes {
  double hidden_s = 0;
  double logits_s = 0;       // to a stage that casts them
  double cast_logits_s = 0;  // to one that has the loss alone, in fp32
  HostCost pass = {};        // of the host, around a chunk's pass
};
// `pp` is the shape of the pipeline's group.
SendTimes exposed_sends(const Job& job, const Plan& plan, const GroupShape& pp);

// Of every kind of chunk, without recomputation; `works` has one entry for each.
void chunk_works(const Job& job, const StepLayout& layout, const ModelTimes& times,
                 const SendTimes& sends, std::span<ChunkWork> works);

// Sums over the chunks of every kind of rank.
void rank_works(const StepLayout& layout, std::span<const ChunkWork> works,
                std::span<ChunkWork> of_ranks);

// The same of what recomputation adds.
void rank_replays(const StepLayout& layout, std::span<const ReplaySeconds> replays,
                  std::span<ReplaySeconds> of_ranks);

// Of every kind of rank.
std::vector<RankParameters> rank_parameters(const Job& job, const StepLayout& layout,
                                            const ModelTimes& times);

}  // namespace shardplan
