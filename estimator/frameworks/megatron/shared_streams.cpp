#include "estimator/frameworks/megatron/shared_streams.h"

#include <algorithm>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan::megatron {
namespace {

// Whether full recomputation, or that of the whole mixture, replays the layer at this place of its
// chunk.
bool replays_layer(const Recompute& recompute, std::int64_t place) {
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: return false;
    case RecomputeGranularity::kSelective: return recompute.modules.moe;
    case RecomputeGranularity::kFull:
      return recompute.method == RecomputeMethod::kUniform || place < recompute.num_layers;
  }
  return false;
}

}  // namespace

bool has_shared_streams(const Job& job) {
  return job.profile.moe_shared_expert_overlap && job.model.moe.shared_ffn > 0;
}

// Forward: what is gathered, fc1's output and the activation's stay for backward; fc2's output, and
// with sequence parallelism its part, go to the other stream, as what a gate leaves does. Backward:
// the gradient that is gathered beside that of the activation, then both of the activation, in
// whose place fc1's input has its own.
SharedStream shared_stream(const Job& job, const Plan& plan) {
  const BlockShape shape = block_shape(job, plan);
  const std::int64_t width = div_ceil(job.model.moe.shared_ffn, plan.tp) * shape.tokens;
  const std::int64_t whole = shape.hidden * shape.tokens;
  const std::int64_t part = shape.hidden * shape.sharded_tokens;
  const std::int64_t gathered = shape.gathers_sequence ? whole : 0;
  const std::int64_t gated = job.model.moe.shared_gate ? part : 0;
  const bool saves_inputs = !trains_adapters(job);
  const std::int64_t inputs = gathered + width;  // of both products, which frozen ones do not save
  const std::int64_t kept = shape.ffn_pieces * width + gated + (saves_inputs ? inputs : 0);
  const std::int64_t forward =
      whole + (shape.gathers_sequence ? part : 0) + gated + (saves_inputs ? 0 : inputs);
  const std::int64_t backward = std::max(gathered + width, shape.ffn_pieces * width);
  const std::int64_t element_bytes = bytes_of(shape.dtype);
  return {.kept = element_bytes * kept, .passing = element_bytes * std::max(forward, backward)};
}

std::int64_t shared_stream_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  if (!has_shared_streams(job)) {
    return 0;
  }
  const SharedStream stream = shared_stream(job, plan);
  std::int64_t bytes = 0;
  for (const ModelChunk& chunk : partition_layers(job, plan).chunks) {
    if (chunk.pp_rank != pp_rank) {
      continue;
    }
    for (std::int64_t place = 0; place < chunk.num_layers; ++place) {
      const auto layer = static_cast<std::size_t>(chunk.first_layer + place);
      if (job.model.layers[layer].is_moe) {
        bytes += stream.passing + (replays_layer(plan.recompute, place) ? stream.kept : 0);
      }
    }
    const bool is_mixture = job.model.layers.back().is_moe;
    bytes += chunk.has_head && is_mixture ? job.model.num_mtp_layers * stream.passing : 0;
  }
  return bytes;
}

}  // namespace shardplan::megatron
