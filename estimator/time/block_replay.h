// What recomputation replays of a layer, and what that costs.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/block_kernels.h"
#include "estimator/time/block_time.h"

namespace shardplan {

// The parts of a layer that recomputation can name; empty ones stay zero.
struct LayerParts {
  BlockTime norms;
  BlockTime projections;  // into and out of attention
  BlockTime mla_up;       // latent attention: up-projections and rotary embedding
  BlockTime attention;
  BlockTime ffn;  // dense
  BlockTime routed;
  BlockTime routed_activation;
  BlockTime shared;
  // Forward: activations, and last products with what sums them over ranks.
  double ffn_activation_s = 0;
  double shared_activation_s = 0;
  double ffn_last_s = 0;
  double routed_last_s = 0;
  double shared_last_s = 0;
};

LayerReplay replay_of(const BlockKernels& framework, const Job& job, const LayerSpec& layer,
                      const LayerParts& parts);
// Every part replayed as it ran forward.
LayerReplay replay_of_parts(const LayerParts& parts);

// Seconds that backward takes longer. Throws std::logic_error for policies without a time model.
double replayed_s(const BlockKernels& framework, const Recompute& recompute,
                  const LayerTime& layer);

}  // namespace shardplan
