#include "estimator/answer/chunk_work.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "estimator/frameworks/framework.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/host_time.h"

namespace shardplan {
namespace {

// Tied tables, and tables that multi-token prediction reads, have a copy beside the head.
bool has_second_table(const ModelSpec& model) {
  return model.tied_embeddings || model.num_mtp_layers > 0;
}

// Layers from `first` on.
ChunkKind chunk_of(const LayerKinds& kinds, std::int64_t first, std::int64_t num_layers) {
  ChunkKind chunk = {.num_layers = num_layers, .num_kinds = kinds.firsts.size()};
  chunk.counts.reserve(static_cast<std::size_t>(num_layers + 1) * chunk.num_kinds);
  chunk.counts.resize(chunk.num_kinds, 0);
  for (std::int64_t layer = first; layer < first + num_layers; ++layer) {
    for (std::size_t kind = 0; kind < chunk.num_kinds; ++kind) {
      const bool is_one = kinds.of_layer[static_cast<std::size_t>(layer)] == kind;
      const std::int64_t before = chunk.counts[chunk.counts.size() - chunk.num_kinds];
      chunk.counts.push_back(before + (is_one ? 1 : 0));
    }
  }
  return chunk;
}

ReplaySeconds replay_of(const BlockTime& block) {
  return {.recompute_s = block.recompute_s, .host_s = block.recompute_host_s};
}

}  // namespace

PlainChunkTime ChunkWork::plain_time() const {
  return {.forward_s = blocks.forward_total_s() + blocks.forward_host_s + forward_send_s,
          .backward_input_s = blocks.backward_total_s() - blocks.backward_weight_s,
          .backward_host_s = blocks.backward_host_s,
          .backward_send_s = backward_send_s,
          .backward_weight_s = blocks.backward_weight_s};
}

std::span<const std::int64_t> ChunkKind::replayed(const Recompute& recompute) const {
  const bool by_blocks = recompute.granularity == RecomputeGranularity::kFull &&
                         recompute.method == RecomputeMethod::kBlock;
  return first_layers(by_blocks ? std::min(recompute.num_layers, num_layers) : num_layers);
}

ReplaySeconds chunk_replay(const Job& job, const Recompute& recompute, const ChunkKind& chunk,
                           const ModelTimes& times) {
  const std::span<const std::int64_t> counts = chunk.replayed(recompute);
  ReplaySeconds replay;
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    replay.add(counts[kind], replay_of(times.layers[kind].time));
  }
  if (chunk.has_head) {
    replay.add(job.model.num_mtp_layers, replay_of(times.mtp));
  }
  return replay;
}

SendTimes exposed_sends(const Job& job, const Plan& plan, const GroupShape& pp) {
  if (plan.pp == 1) {
    return {};
  }
  const Framework& framework = framework_of(job.profile);
  const double element_bytes = plan.precision == Precision::kFp32 ? 4 : 2;
  const bool gathers =
      answer_of(framework.divides_sends, job.profile) && !plan.sequence_parallel && plan.tp > 1;
  const double sharded_over = plan.sequence_parallel || gathers ? number(plan.tp) : 1;
  const double whole = number(tokens_per_microbatch(job, plan) * job.model.hidden) * element_bytes;
  const double gather_s =
      gathers ? all_gather_s(job.cluster, group_shape(job, plan, GroupKind::kTp), whole) : 0;
  const double hand_over_s = answer_of(framework.hand_over_s, job.profile);
  const auto visible_s = [&](double bytes, double gathered_s) {
    return (send_s(job.cluster, pp, bytes, carrier_of(framework.kernels.moves_by_copies, pp)) +
            gathered_s) *
               job.profile.exposed_pp_share +
           hand_over_s;
  };
  SendTimes sends = {.hidden_s = visible_s(whole / sharded_over, gather_s),
                     .pass = host_cost_of_pass(job, plan, framework.kernels.host)};
  if (framework.kernels.parted_loss != nullptr) {
    const double logits =
        number(tokens_per_microbatch(job, plan) * padded_vocab(job, plan) / plan.tp);
    sends.logits_s = visible_s(logits * element_bytes, 0);
    sends.cast_logits_s = visible_s(logits * 4, 0);
  }
  return sends;
}

namespace {

// Seconds of the tensor that a chunk receives, and whose gradient it sends back.
double received_s(const ChunkKind& chunk, const SendTimes& sends) {
  if (chunk.is_first) {
    return 0;
  }
  const bool is_behind_head = !chunk.has_head && (chunk.has_cast || chunk.has_loss);
  if (!is_behind_head) {
    return sends.hidden_s;
  }
  return chunk.has_cast ? sends.logits_s : sends.cast_logits_s;
}

double sent_s(const ChunkKind& chunk, const SendTimes& sends) {
  if (chunk.has_loss) {
    return 0;
  }
  return chunk.has_head ? sends.logits_s : chunk.has_cast ? sends.cast_logits_s : sends.hidden_s;
}

void add_ends(const ModelTimes& times, const ChunkKind& chunk, BlockTime& blocks) {
  if (chunk.has_head && chunk.has_loss) {
    return add(blocks, times.head);
  }
  if (chunk.has_head) {
    add(blocks, times.head_parts.logits);
  }
  if (chunk.has_cast) {
    add(blocks, times.head_parts.cast);
  }
  if (chunk.has_loss) {
    add(blocks, times.head_parts.loss);
  }
}

}  // namespace

StepLayout step_layout(const Job& job, const Plan& plan, const LayerKinds& kinds) {
  StepLayout layout;
  std::vector<std::size_t> chunk_kinds;
  for (const ModelChunk& chunk : partition_layers(job, plan).chunks) {
    ChunkKind kind = chunk_of(kinds, chunk.first_layer, chunk.num_layers);
    kind.is_first = chunk.has_embedding;
    kind.has_head = chunk.has_head;
    kind.has_cast = chunk.has_cast;
    kind.has_loss = chunk.has_loss;
    const auto same = std::ranges::find(layout.chunks, kind);
    chunk_kinds.push_back(static_cast<std::size_t>(same - layout.chunks.begin()));
    if (same == layout.chunks.end()) {
      layout.chunks.push_back(kind);
    }
  }
  const ScheduleShape placement = {.schedule = plan.schedule, .pp = plan.pp, .vpp = plan.vpp};
  layout.pipeline = pipeline_layout(placement, std::move(chunk_kinds));
  return layout;
}

namespace {

bool sends_beside_work(const Job& job, const PipelineLayout& pipeline) {
  const std::vector<std::int64_t>& chunks = pipeline.rank_chunks.front();
  const bool interleaves = std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0}) > 1;
  return allowed_overlaps(job).sends &&
         (interleaves || !framework_of(job.profile).sends_between_passes);
}

// How far the host is ahead of the GPU at the end of the chunk's layers.
HostCost lead_of_host(const ModelTimes& times, std::span<const std::int64_t> layers) {
  HostCost lead;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    const LayerTime& layer = times.layers[kind];
    const HostCost& launches = layer.host.launches;
    const double count = layer.host.waits ? 0 : number(layers[kind]);
    lead.forward_s += count * std::max(0.0, layer.time.forward_total_s() - launches.forward_s);
    lead.backward_s += count * std::max(0.0, layer.time.backward_total_s() - launches.backward_s);
  }
  return lead;
}

}  // namespace

void chunk_works(const Job& job, const StepLayout& layout, const ModelTimes& times,
                 const SendTimes& sends, std::span<ChunkWork> works) {
  const bool waits_for_receives = framework_of(job.profile).waits_for_receives;
  const bool sends_beside = sends_beside_work(job, layout.pipeline);
  for (std::size_t i = 0; i < layout.chunks.size(); ++i) {
    const ChunkKind& chunk = layout.chunks[i];
    ChunkWork work;
    const std::span<const std::int64_t> layers = chunk.layers();
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      if (layers[kind] > 0) {
        add(work.blocks, times.layers[kind].time, layers[kind]);
      }
    }
    if (chunk.is_first) {
      add(work.blocks, times.embedding);
    }
    add_ends(times, chunk, work.blocks);
    if (chunk.has_head) {
      add(work.blocks, times.mtp, job.model.num_mtp_layers);
    }
    const double hidden_behind_s =
        sends_beside ? work.blocks.forward_total_s() + work.blocks.forward_host_s : 0;
    work.forward_send_s = std::max(0.0, sent_s(chunk, sends) - hidden_behind_s);
    work.backward_send_s = std::max(0.0, received_s(chunk, sends) - hidden_behind_s);
    // Without overlap the host waits for the GPU around every message (Megatron-LM core_v0.16.1
    // core/pipeline_parallel/p2p_communication.py, batch_p2p_sync).
    const HostCost lead = sends_beside ? lead_of_host(times, layers) : HostCost{};
    work.forward_send_s += std::max(0.0, sends.pass.forward_s - lead.forward_s);
    work.backward_send_s += std::max(0.0, sends.pass.backward_s - lead.backward_s);
    if (waits_for_receives) {
      work.forward_send_s += received_s(chunk, sends);
      work.backward_send_s += sent_s(chunk, sends);
    }
    works[i] = work;
  }
}

void rank_works(const StepLayout& layout, std::span<const ChunkWork> works,
                std::span<ChunkWork> of_ranks) {
  for (std::size_t rank = 0; rank < layout.pipeline.rank_chunks.size(); ++rank) {
    const std::vector<std::int64_t>& chunks = layout.pipeline.rank_chunks[rank];
    ChunkWork sum;
    for (std::size_t kind = 0; kind < chunks.size(); ++kind) {
      if (chunks[kind] > 0) {
        const double n = number(chunks[kind]);
        add(sum.blocks, works[kind].blocks, chunks[kind]);
        sum.forward_send_s += n * works[kind].forward_send_s;
        sum.backward_send_s += n * works[kind].backward_send_s;
      }
    }
    of_ranks[rank] = sum;
  }
}

void rank_replays(const StepLayout& layout, std::span<const ReplaySeconds> replays,
                  std::span<ReplaySeconds> of_ranks) {
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::int64_t* const counts = layout.pipeline.rank_chunks[rank].data();
    ReplaySeconds sum;
    for (std::size_t kind = 0; kind < replays.size(); ++kind) {
      sum.add(counts[kind], replays[kind]);
    }
    of_ranks[rank] = sum;
  }
}

namespace {

// Parameters that a backward pass gathers again (UpdateTimes::regathers_layers).
LocalParameters regathered_parameters(const StepLayout& layout, const ModelTimes& times,
                                      std::size_t rank) {
  LocalParameters sum;
  const auto add_some = [&](const LocalParameters& parameters, std::int64_t count) {
    sum.dense += count * parameters.dense;
    sum.expert += count * parameters.expert;
  };
  for (std::size_t i = 0; i < layout.chunks.size(); ++i) {
    const ChunkKind& chunk = layout.chunks[i];
    const std::int64_t chunks = layout.pipeline.rank_chunks[rank][i];
    for (std::size_t kind = 0; kind < times.layers.size(); ++kind) {
      add_some(times.layers[kind].time.parameters, chunks * chunk.layers()[kind]);
    }
    if (chunk.is_first && chunk.has_head) {
      add_some(times.layers[times.last_kind].time.parameters, -chunks);
    }
  }
  return sum;
}

// Without a copy of the embedding.
HeldBlocks held_blocks(const Job& job, const StepLayout& layout, const ModelTimes& times,
                       std::size_t rank) {
  HeldBlocks held;
  for (std::size_t i = 0; i < layout.chunks.size(); ++i) {
    const ChunkKind& chunk = layout.chunks[i];
    const std::int64_t chunks = layout.pipeline.rank_chunks[rank][i];
    for (std::size_t kind = 0; kind < times.layers.size(); ++kind) {
      const std::size_t layer = static_cast<std::size_t>(times.layers[kind].layer_kind);
      (job.model.layers[layer].is_moe ? held.moe_layers : held.dense_layers) +=
          chunks * chunk.layers()[kind];
    }
    held.tables += chunk.is_first ? chunks : 0;
    held.tables += chunk.has_head && !job.model.tied_embeddings ? chunks : 0;
    held.mtp_modules += chunk.has_head ? chunks * job.model.num_mtp_layers : 0;
    held.has_final_norm = held.has_final_norm || (chunk.has_head && chunks > 0);
  }
  return held;
}

}  // namespace

std::vector<RankParameters> rank_parameters(const Job& job, const StepLayout& layout,
                                            const ModelTimes& times) {
  std::vector<ChunkWork> works(layout.chunks.size());
  chunk_works(job, layout, times, {}, works);
  std::vector<ChunkWork> of_ranks(layout.pipeline.rank_chunks.size());
  rank_works(layout, works, of_ranks);
  const bool regathers = framework_of(job.profile).update.regathers_layers;
  std::vector<RankParameters> ranks;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    LocalParameters parameters = of_ranks[rank].blocks.parameters;
    bool holds_embedding = false;
    bool holds_head = false;
    for (std::size_t kind = 0; kind < layout.chunks.size(); ++kind) {
      const bool is_held = layout.pipeline.rank_chunks[rank][kind] > 0;
      holds_embedding = holds_embedding || (is_held && layout.chunks[kind].is_first);
      holds_head = holds_head || (is_held && layout.chunks[kind].has_head);
    }
    const bool ends_apart = has_second_table(job.model) && holds_embedding != holds_head;
    const std::int64_t table = times.embedding.parameters.dense;
    HeldBlocks blocks = held_blocks(job, layout, times, rank);
    if (ends_apart && holds_head) {
      parameters.dense += table;
      ++blocks.tables;
    }
    ranks.push_back(
        {.held = parameters,
         .regathered = regathers ? regathered_parameters(layout, times, rank) : LocalParameters{},
         .tied_elements = ends_apart ? table : 0,
         .blocks = blocks});
  }
  return ranks;
}

}  // namespace shardplan
