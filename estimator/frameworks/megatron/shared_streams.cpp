#include "estimator/frameworks/megatron/shared_streams.h"

#include <algorithm>
#include <array>
#include <numeric>

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

// What adapters on both products have on the stream, in elements.
struct SharedAdapters {
  bool saves_fc1_input = true;
  bool saves_fc2_input = true;
  std::int64_t kept = 0;        // outputs of A, and inputs that dropout left
  std::int64_t mask_bytes = 0;  // of dropout
  std::int64_t forward = 0;     // B's output and that one scaled
  std::int64_t backward = 0;    // the adapter's part of an input's gradient
};

SharedAdapters shared_adapters(const Job& job, const BlockShape& shape, std::int64_t width) {
  if (!trains_adapters(job)) {
    return {};
  }
  const bool drops = job.adapters.dropout > 0;
  const std::int64_t whole = shape.hidden * shape.tokens;
  SharedAdapters adapters = {.saves_fc1_input = adapts_fc1(job) && !drops,
                             .saves_fc2_input = adapts_fc2(job) && !drops};
  const auto add = [&](std::int64_t input, std::int64_t output) {
    adapters.kept += job.adapters.rank * shape.tokens + (drops ? input : 0);
    adapters.mask_bytes += drops ? input : 0;
    adapters.forward = std::max(adapters.forward, 2 * output);
    adapters.backward = std::max(adapters.backward, input);
  };
  if (adapts_fc1(job)) {
    add(whole, shape.ffn_pieces * width);
  }
  if (adapts_fc2(job)) {
    add(width, whole);
  }
  return adapters;
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
  // Inputs of both products, which frozen ones do not save for themselves.
  const SharedAdapters adapters = shared_adapters(job, shape, width);
  const std::int64_t inputs =
      (adapters.saves_fc1_input ? gathered : 0) + (adapters.saves_fc2_input ? width : 0);
  const std::int64_t kept = shape.ffn_pieces * width + gated + inputs + adapters.kept;
  const std::int64_t forward = whole + (shape.gathers_sequence ? part : 0) + gated + gathered +
                               width - inputs + adapters.forward;
  const std::int64_t backward =
      std::max(gathered + width, shape.ffn_pieces * width) + adapters.backward;
  const std::int64_t element_bytes = bytes_of(shape.dtype);
  return {.kept = element_bytes * kept + adapters.mask_bytes,
          .passing = element_bytes * std::max(forward, backward)};
}

std::int64_t num_shared_streams(std::int64_t mixtures) {
  return std::min(mixtures, kStreamsOfPool);
}

std::int64_t shared_stream_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  if (!has_shared_streams(job)) {
    return 0;
  }
  const SharedStream stream = shared_stream(job, plan);
  std::array<std::int64_t, kStreamsOfPool> of_streams{};
  std::size_t next = 0;
  const auto add = [&](std::int64_t bytes) {
    std::int64_t& most = of_streams.at(next++ % of_streams.size());
    most = std::max(most, bytes);
  };
  for (const ModelChunk& chunk : partition_layers(job, plan).chunks) {
    if (chunk.pp_rank != pp_rank) {
      continue;
    }
    for (std::int64_t place = 0; place < chunk.num_layers; ++place) {
      const auto layer = static_cast<std::size_t>(chunk.first_layer + place);
      if (job.model.layers[layer].is_moe) {
        add(stream.passing + (replays_layer(plan.recompute, place) ? stream.kept : 0));
      }
    }
    const std::int64_t modules =
        chunk.has_head && job.model.layers.back().is_moe ? job.model.num_mtp_layers : 0;
    for (std::int64_t module = 0; module < modules; ++module) { add(stream.passing); }
  }
  return std::accumulate(of_streams.begin(), of_streams.end(), std::int64_t{0});
}

}  // namespace shardplan::megatron
