#include "estimator/ledger/stage_layout.h"

#include <algorithm>

#include "estimator/ledger/layer_blocks.h"

namespace shardplan {
namespace {

void append(std::vector<BlockRun>& runs, BlockKind kind) {
  if (!runs.empty() && runs.back().kind == kind) {
    ++runs.back().count;
  } else {
    runs.push_back({.kind = kind, .count = 1});
  }
}

void append(std::vector<Unit>& units, Unit unit) {
  const bool repeats = !units.empty() && units.back().blocks == unit.blocks &&
                       units.back().checkpointed == unit.checkpointed;
  if (repeats) {
    units.back().count += unit.count;
  } else {
    units.push_back(std::move(unit));
  }
}

// A unit of one block.
void append(std::vector<Unit>& units, BlockKind kind, bool checkpointed) {
  const BlockRun block = {.kind = kind, .count = 1};
  if (!units.empty()) {
    Unit& last = units.back();
    if (last.checkpointed == checkpointed && last.blocks.size() == 1 &&
        last.blocks.front() == block) {
      ++last.count;
      return;
    }
  }
  units.push_back({.blocks = {block}, .checkpointed = checkpointed, .count = 1});
}

// Megatron-LM core/transformer/transformer_block.py, _checkpointed_forward: `uniform` splits the
// chunk into groups of num_layers, `block` recomputes its first num_layers layers one by one.
struct RecomputeGroups {
  std::int64_t recomputed_layers = 0;
  std::int64_t group = 1;
};

RecomputeGroups recompute_groups(const Plan& plan, std::int64_t layers) {
  if (plan.recompute.granularity != RecomputeGranularity::kFull) {
    return {};
  }
  if (plan.recompute.method == RecomputeMethod::kUniform) {
    return {.recomputed_layers = layers,
            .group = std::max<std::int64_t>(plan.recompute.num_layers, 1)};
  }
  return {.recomputed_layers = std::min(plan.recompute.num_layers, layers), .group = 1};
}

// Ends of a chunk are kinds of their own: of a pipeline those that meet its buffers, a first layer
// and one without a head behind. Where every second layer is recomputed, layers count over all
// chunks of the rank (torchtitan distributed/activation_checkpoint.py, _apply_layer_sac).
void append_placed_layers(std::vector<Unit>& units, const LayerBlocks& blocks, const Plan& plan,
                          const ModelChunk& chunk, std::int64_t layers_before) {
  const std::int64_t layers = chunk.num_layers;
  const bool is_pipelined = plan.pp > 1;
  const auto kind_at = [&](std::int64_t layer) {
    const bool is_first = layer == 0 && (is_pipelined || layers > 1);
    const bool is_last = layer + 1 == layers && !(is_pipelined && chunk.has_head);
    const std::int64_t at = chunk.first_layer + layer;
    const bool is_first_moe = at > 0 && blocks.kind_of(at) == BlockKind::kMoeLayer &&
                              blocks.kind_of(at - 1) == BlockKind::kDenseLayer;
    return is_first       ? BlockKind::kFirstLayer
           : is_last      ? BlockKind::kLastLayer
           : is_first_moe ? BlockKind::kFirstMoeLayer
                          : blocks.kind_of(at);
  };
  const bool all = plan.recompute.granularity == RecomputeGranularity::kFull;
  const bool every_second = plan.recompute.policy == "every_second_layer";
  for (std::int64_t i = 0; i < layers; ++i) {
    append(units, kind_at(i), all || (every_second && (layers_before + i) % 2 == 1));
  }
}

void append_layers(std::vector<Unit>& units, const LayerBlocks& blocks, const Plan& plan,
                   const ModelChunk& chunk) {
  const RecomputeGroups groups = recompute_groups(plan, chunk.num_layers);
  std::int64_t done = 0;
  for (; groups.group == 1 && done < groups.recomputed_layers; ++done) {
    append(units, blocks.kind_of(chunk.first_layer + done), true);
  }
  while (done < groups.recomputed_layers) {
    Unit unit{.blocks = {}, .checkpointed = true, .count = 1};
    const std::int64_t end = std::min(done + groups.group, groups.recomputed_layers);
    for (; done < end; ++done) { append(unit.blocks, blocks.kind_of(chunk.first_layer + done)); }
    append(units, std::move(unit));
  }
  for (; done < chunk.num_layers; ++done) {
    append(units, blocks.kind_of(chunk.first_layer + done), false);
  }
}

ChunkLayout chunk_layout(const LayerBlocks& blocks, const Plan& plan, const ModelChunk& chunk,
                         const StageLayout& stage, bool stage_has_embedding) {
  const Job& job = blocks.job();
  ChunkLayout layout;
  layout.first_layer = blocks.vary() ? chunk.first_layer : 0;
  const auto single = [&](BlockKind kind, std::int64_t count) {
    layout.units.push_back(
        {.blocks = {{.kind = kind, .count = 1}}, .checkpointed = false, .count = count});
  };
  if (chunk.has_embedding) {
    single(BlockKind::kEmbedding, 1);
  }
  if (job.profile.layout.layers_differ_by_place) {
    append_placed_layers(layout.units, blocks, plan, chunk, stage.num_layers);
  } else {
    append_layers(layout.units, blocks, plan, chunk);
  }
  if (chunk.has_head) {
    if (job.model.num_mtp_layers > 0) {
      single(BlockKind::kMtp, job.model.num_mtp_layers);
    }
    single(chunk.has_loss ? BlockKind::kHead : BlockKind::kLogits, 1);
    layout.has_embedding_copy =
        !stage_has_embedding && (job.model.tied_embeddings || job.model.num_mtp_layers > 0);
  }
  if (chunk.has_cast && !chunk.has_head) {
    single(BlockKind::kCast, 1);
  }
  if (chunk.has_loss && !chunk.has_head) {
    single(BlockKind::kLoss, 1);
  }
  layout.sends_output = !chunk.has_loss;
  const bool keeps_output =
      job.profile.layout.sends_from_buffers || job.profile.keeps_sent_outputs();
  if (layout.sends_output && keeps_output) {
    single(BlockKind::kSentOutput, 1);
  }
  return layout;
}

}  // namespace

StageLayout stage_layout(const Job& job, const Plan& plan, const LayerPartition& partition,
                         std::int64_t pp_rank) {
  StageLayout stage{.pp_rank = pp_rank, .num_layers = 0, .ends = {}, .chunks = {}};
  stage.chunks.resize(static_cast<std::size_t>(plan.vpp));
  const bool has_embedding = partition.chunks.front().pp_rank == pp_rank;
  const LayerBlocks blocks(job);
  for (std::int64_t local = 0; local < plan.vpp; ++local) {
    const std::int64_t position = position_of_chunk(plan, pp_rank, local);
    const ModelChunk& chunk = partition.chunks[static_cast<std::size_t>(position)];
    stage.chunks[static_cast<std::size_t>(local)] =
        chunk_layout(blocks, plan, chunk, stage, has_embedding);
    stage.num_layers += chunk.num_layers;
    stage.ends.has_embedding = stage.ends.has_embedding || chunk.has_embedding;
    stage.ends.has_head = stage.ends.has_head || chunk.has_head;
    stage.ends.has_cast = stage.ends.has_cast || chunk.has_cast;
    stage.ends.receiving_chunks += chunk.has_embedding ? 0 : 1;
    stage.ends.sending_chunks += chunk.has_loss ? 0 : 1;
  }
  return stage;
}

std::int64_t count_blocks(const StageLayout& stage, BlockKind kind) {
  std::int64_t count = 0;
  for (const ChunkLayout& chunk : stage.chunks) {
    for (const Unit& unit : chunk.units) {
      for (const BlockRun& run : unit.blocks) {
        count += run.kind == kind ? run.count * unit.count : 0;
      }
    }
  }
  return count;
}

}  // namespace shardplan
