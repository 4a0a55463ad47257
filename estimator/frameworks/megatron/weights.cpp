// Order read in Megatron-LM core_v0.16.1: core/transformer (modules make their weights as they are
// built), core/distributed/param_and_grad_buffer.py, core/optimizer/distrib_optimizer.py.
#include "estimator/frameworks/megatron/weights.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/pieces/seen_by_layer.h"
#include "estimator/ledger/layer_blocks.h"

namespace shardplan::megatron {
namespace {

struct Weights {
  std::vector<std::int64_t> dense;  // elements on one rank, in the order of construction
  std::vector<std::int64_t> expert;
};

// In the order of construction: Attention makes the projection before SelfAttention makes the
// product that is packed (core/transformer/attention.py).
std::vector<WeightShape> module_shapes(const Job& job, const Plan& plan, BlockKind kind) {
  std::vector<WeightShape> shapes = weight_shapes(job, plan, kind);
  const bool attends = is_layer(kind) && kind != BlockKind::kMtp &&
                       layer_of(job, kind).mixer == MixerKind::kAttention;
  if (attends && !job.model.is_mla()) {
    std::swap(shapes[0], shapes[1]);
  }
  return shapes;
}

Weights block_weights(const Job& job, const Plan& plan, BlockKind kind) {
  Weights weights;
  const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
  const bool has_experts = is_mixture(job, kind);
  const std::vector<WeightShape> of_experts = expert_weight_shapes(job, plan);
  std::vector<WeightShape> experts;
  for (const WeightShape& shape : module_shapes(job, plan, shapes)) {
    if (has_experts && std::ranges::find(of_experts, shape) != of_experts.end()) {
      experts.push_back(shape);
    } else {
      weights.dense.insert(weights.dense.end(), static_cast<std::size_t>(shape.count),
                           shape.rows * shape.columns);
    }
  }
  for (std::int64_t i = 0; !experts.empty() && i < experts.front().count; ++i) {
    for (const WeightShape& shape : experts) {
      weights.expert.push_back(shape.rows * shape.columns);
    }
  }
  return weights;
}

void append(std::vector<std::int64_t>& all, const std::vector<std::int64_t>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

using KindWeights = std::array<std::optional<Weights>, kNumBlockKinds>;  // as far as they are known

Weights chunk_weights(const Job& job, const Plan& plan, const ChunkLayout& chunk,
                      KindWeights& of_kind) {
  Weights weights;
  for (const Unit& unit : chunk.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      for (const BlockRun& run : unit.blocks) {
        // A tied head has a table of its own only where the embedding is on another rank.
        const bool is_view =
            run.kind == BlockKind::kHead && job.model.tied_embeddings && !chunk.has_embedding_copy;
        std::optional<Weights>& block = of_kind[static_cast<std::size_t>(run.kind)];
        if (!block) {
          block = block_weights(job, plan, run.kind);
        }
        for (std::int64_t at = 0; at < run.count && !is_view; ++at) {
          append(weights.dense, block->dense);
          append(weights.expert, block->expert);
        }
      }
    }
  }
  return weights;
}

// The pieces of the weights that lie in one rank's share of every bucket of a contiguous buffer, in
// its order, which the sharded optimizer's groups have, too (distrib_optimizer.py,
// _build_optimizer_group_ranges): weights lie in it in reverse, a bucket ends with the weight that
// makes it large enough. bucket_elements 0: one bucket.
std::vector<std::int64_t> share_of(const std::vector<std::int64_t>& weights, std::int64_t ranks,
                                   std::int64_t rank, std::int64_t bucket_elements) {
  std::vector<std::int64_t> pieces;
  for (std::size_t end = weights.size(); end > 0;) {
    std::int64_t elements = 0;
    std::size_t first = end;
    while (first > 0 && (bucket_elements == 0 || elements < bucket_elements)) {
      elements += weights[--first];
    }
    const std::int64_t share = div_ceil(elements, ranks);
    std::int64_t begin = 0;
    for (std::size_t i = end; i-- > first && begin < (rank + 1) * share;) {
      const std::int64_t from = std::max(begin, rank * share);
      const std::int64_t to = std::min(begin + weights[i], (rank + 1) * share);
      if (from < to) {
        pieces.push_back(to - from);
      }
      begin += weights[i];
    }
    end = first;
  }
  return pieces;
}

// Not more than the buffer's share: the shapes of weights count heads that no rank has.
void cut_to(std::vector<std::int64_t>& pieces, std::int64_t elements) {
  if (std::reduce(pieces.begin(), pieces.end()) <= elements) {
    return;
  }
  for (std::int64_t& piece : pieces) {
    piece = std::min(piece, elements);
    elements -= piece;
  }
  std::erase(pieces, 0);
}

// Lists the tensors that AdamW updates, then Muon's matrices.
void set_muon_elements(StageWeights& found, const Job& job, const Plan& plan,
                       const StageLayout& stage) {
  const std::vector<MuonTensor> tensors = muon_tensors(job, plan, held_blocks(job, stage));
  const std::vector<MuonTensor> own = fullest_muon_tensors(job, plan, tensors);
  const auto add = [&](bool matrices) {
    for (const MuonTensor& tensor : own) {
      if (tensor.is_matrix == matrices) {
        found.of_optimizer.insert(found.of_optimizer.end(), static_cast<std::size_t>(tensor.count),
                                  tensor.elements());
      }
    }
  };
  found.of_optimizer.clear();
  add(false);
  found.second_moments = found.of_optimizer.size();
  add(true);
}

}  // namespace

StageWeights stage_weights(const Job& job, const Plan& plan, const StageLayout& stage,
                           const StageTensors& tensors, std::int64_t shard) {
  StageWeights found;
  KindWeights of_kind;
  std::vector<std::int64_t> experts;
  const ContiguousBuffers cut = buffers(job, plan);
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    Weights weights = chunk_weights(job, plan, stage.chunks[chunk], of_kind);
    std::vector<std::int64_t>& frozen = found.frozen.emplace_back();
    if (trains_adapters(job)) {
      append(frozen, weights.dense);
      append(frozen, weights.expert);
      TrainedTensors trained = trained_tensors(job, plan, stage.chunks[chunk]);
      weights = {.dense = std::move(trained.dense), .expert = std::move(trained.expert)};
    }
    const ChunkBuffers& buffers = tensors.chunks[chunk];
    std::vector<std::int64_t>& of_chunk = found.of_chunk.emplace_back();
    for (std::vector<std::int64_t>* part : {&weights.dense, &weights.expert}) {
      const bool dense = part == &weights.dense;
      cut_to(*part, dense ? buffers.dense : buffers.expert);
      append(of_chunk, *part);
      const std::int64_t ranks = plan.zero == 0 ? 1
                                 : dense        ? dense_shard_size(job, plan)
                                                : expert_state_shards(job, plan);
      const bool has_buckets = stage.pp_rank == 0 && chunk == 0;
      const std::int64_t bucket = dense ? cut.dense_bucket : cut.expert_bucket;
      std::vector<std::int64_t> own =
          plan.zero == 0 ? *part : share_of(*part, ranks, shard % ranks, has_buckets ? bucket : 0);
      cut_to(own, (dense ? buffers.dense : buffers.expert) / ranks);
      append(dense ? found.of_optimizer : experts, own);
    }
  }
  append(found.of_optimizer, experts);
  found.second_moments = found.of_optimizer.size();
  if (uses_muon(job)) {
    set_muon_elements(found, job, plan, stage);
  }
  return found;
}

// core/distributed/distributed_data_parallel.py and training/training.py.
ContiguousBuffers buffers(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSmallest = 40'000'000;
  constexpr std::int64_t kPerRank = 1'000'000;
  ContiguousBuffers cut = {.linear_apart = keeps_fp8_weights(job, plan)};
  if (job.profile.overlap_grad_reduce) {
    cut.dense_bucket = std::max(kSmallest, kPerRank * dense_shard_size(job, plan));
    cut.expert_bucket = std::max(kSmallest, kPerRank * expert_state_shards(job, plan));
  }
  return cut;
}

}  // namespace shardplan::megatron
