// Which transformer layers lie on which pipeline rank and chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

// One model chunk: a contiguous run of layers on one rank. Chunks are counted in model order.
struct ModelChunk {
  std::int64_t pp_rank = 0;
  std::int64_t local_chunk = 0;  // 0..vpp-1 on that rank
  std::int64_t first_layer = 0;
  std::int64_t num_layers = 0;
  bool has_embedding = false;  // first chunk of the model
  bool has_head = false;       // final norm, head, MTP modules
  bool has_cast = false;       // of the logits to fp32, and
  bool has_loss = false;       // the loss: where the head is, but for nanotron
};

struct LayerPartition {
  std::vector<ModelChunk> chunks;  // pp * vpp entries in model order
};

// The rank that holds chunk `position` (0..pp*vpp-1 in model order), and its local number there.
// Looping placement (interleaved): rank = position % pp. V placement (zbv): up and down again.
std::int64_t pp_rank_of_chunk(const Plan& plan, std::int64_t position);
std::int64_t local_chunk_of(const Plan& plan, std::int64_t position);
std::int64_t position_of_chunk(const Plan& plan, std::int64_t pp_rank, std::int64_t local_chunk);

// Layers of every chunk in model order: plan.layers_per_chunk if given; else even, counting the
// embedding and the head as one layer each where the profile's options say so.
// Empty when the layers cannot be split evenly (why_invalid names the rule), or when nanotron puts
// the loss before the last stage.
std::vector<std::int64_t> layers_per_chunk(const Job& job, const Plan& plan);

// The stage that holds the head: the last one, but for nanotron.
std::int64_t head_stage(const Job& job, const Plan& plan);

// Throws logic_error where layers_per_chunk is empty.
LayerPartition partition_layers(const Job& job, const Plan& plan);

}  // namespace shardplan
