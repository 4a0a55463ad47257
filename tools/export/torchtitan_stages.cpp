#include "tools/export/torchtitan_stages.h"

#include <algorithm>

#include "data/read/input_error.h"

namespace shardplan {
namespace {

// Layers of each chunk where the two ends have these weights; none where an end does not fit.
std::vector<std::int64_t> chunks_of(std::int64_t num_layers, std::int64_t num_chunks,
                                    const StageWeights& weights) {
  const std::int64_t slots = num_layers + weights.embedding + weights.head;
  if (std::max(weights.embedding, weights.head) > slots / num_chunks) {
    return {};
  }
  std::vector<std::int64_t> chunks;
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    chunks.push_back(slots / num_chunks + (chunk < slots % num_chunks ? 1 : 0));
  }
  chunks.front() -= weights.embedding;
  chunks.back() -= weights.head;
  return chunks;
}

std::int64_t slots_per_chunk(std::int64_t num_layers, std::int64_t num_chunks,
                             const StageWeights& weights) {
  return (num_layers + weights.embedding + weights.head + num_chunks - 1) / num_chunks;
}

}  // namespace

StageWeights stage_weights(const ExportRequest& request) {
  const Plan& plan = request.plan();
  const std::int64_t num_layers = request.job().model.num_layers();
  const std::int64_t num_chunks = plan.pp * plan.vpp;
  StageWeights weights;
  weights.layers_per_stage = slots_per_chunk(num_layers, num_chunks, weights);
  if (plan.layers_per_chunk.empty()) {
    return weights;
  }
  const std::int64_t most = num_layers / num_chunks + 1;
  for (weights.embedding = 0; weights.embedding <= most; ++weights.embedding) {
    for (weights.head = 0; weights.head <= most; ++weights.head) {
      if (chunks_of(num_layers, num_chunks, weights) == plan.layers_per_chunk) {
        weights.layers_per_stage = slots_per_chunk(num_layers, num_chunks, weights);
        return weights;
      }
    }
  }
  throw InputError(
      "--export: torchtitan v0.2.2 has no setting for these layers_per_chunk, expected even ones "
      "but for the first and the last; nothing is written");
}

}  // namespace shardplan
