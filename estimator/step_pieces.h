// What the time of a step is composed from: kinds of chunks, their work on one microbatch, and what
// every kind of rank does after the pipeline. estimate_step_time makes them for one plan; search
// keeps them, so that both have the same numbers to the last bit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "estimator/block_time.h"
#include "estimator/pipeline_time.h"
#include "estimator/sharding_time.h"
#include "estimator/step_time.h"

namespace shardplan {

// Chunks with as many layers of every kind and the same ends of the model are alike.
struct ChunkKind {
  std::vector<std::int64_t> replayed;  // layers that recomputation may replay, by layer kind
  std::vector<std::int64_t> others;    // that full recomputation by blocks leaves out
  bool is_first = false;               // of the model: embedding
  bool is_last = false;                // head, loss, multi-token prediction
  friend bool operator==(const ChunkKind&, const ChunkKind&) = default;
};

// Depends on pp, vpp, the layers of the chunks, the placement of the schedule, and full
// recomputation by blocks.
struct StepLayout {
  std::vector<ChunkKind> chunks;
  PipelineLayout pipeline;
};
StepLayout step_layout(const Job& job, const Plan& plan, const LayerKinds& kinds);

// One microbatch in one chunk, or summed over the chunks of one rank. recompute_s is what the plan
// replays, sends_s the exposed sends of activations and of gradients.
struct ChunkWork {
  BlockTime blocks;
  double forward_send_s = 0;
  double backward_send_s = 0;

  ChunkTime chunk_time() const;
};

// The send of one hidden tensor to the next stage, as far as it stays visible. `pp` is the shape of
// the pipeline's group.
double exposed_send_s(const Job& job, const Plan& plan, const GroupShape& pp);

// Of every kind of chunk; `works` and `times` have one entry for each.
void chunk_works(const Job& job, const StepLayout& layout, const ModelTimes& times, double send_s,
                 std::span<ChunkWork> works, std::span<ChunkTime> chunk_times);

// Sums over the chunks of every kind of rank.
void rank_works(const StepLayout& layout, std::span<const ChunkWork> works,
                std::span<ChunkWork> of_ranks);

// Of every kind of rank.
std::vector<RankParameters> rank_parameters(const Job& job, const StepLayout& layout,
                                            const ModelTimes& times);

// A rank that may be the slowest after the pipeline: its work on one microbatch, which
// communication may hide behind, and the kind of its update.
struct DecidingRank {
  MicrobatchWork work;
  std::size_t update = 0;
};

// What the pipeline takes of a step, and the ranks that decide what follows: the stages step
// together, and the slowest of both ends of the model and the critical rank is waited for.
struct PipelineStep {
  StepTime parts;  // all but data parallelism and the optimizer
  std::array<DecidingRank, 3> ranks;
  std::size_t num_ranks = 0;
};

// `rank_works` by kind of `ranks`. Updates are by kind of `update_ranks`, whose kinds may be fewer:
// recomputation changes no update.
PipelineStep pipeline_step(const ScheduleShape& shape, const PipelineLayout& ranks,
                           std::span<const ChunkWork> rank_works, const PipelineTime& pipeline,
                           const PipelineLayout& update_ranks);

// Parts, total and speed of the whole step.
StepTime step_time_of(const Job& job, const Plan& plan, std::int64_t num_microbatches,
                      const PipelineStep& pipeline, std::span<const RankUpdate> updates);

}  // namespace shardplan
