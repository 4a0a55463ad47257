// Adapters that Megatron-SWIFT puts on Megatron-core's linear layers: which there are, and what of
// a stage is trained. All other parameters are frozen: they lie in no buffer and have neither
// gradients nor optimizer state (core_v0.16.1 core/distributed/distributed_data_parallel.py takes
// what requires gradients).
// Source: mcore-bridge f020e47 src/mcore_bridge/tuners/lora.py, LoraParallelLinear; ms-swift 4.6
// swift/megatron/utils/utils.py, prepare_adapter, and megatron_lm_utils.py, wrap_model:
// Float16Module makes all parameters bf16, whatever type adapters had before.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/job.h"

namespace shardplan::megatron {

// Adapters are trained, and nothing else but copies of the embedding and the output layer.
inline bool trains_adapters(const Job& job) {
  return job.adapters.rank > 0;
}

// Linear layers of Megatron-core by the places of Hugging Face's that they stand for: queries, keys
// and values are one (linear_qkv), of latent attention all four projections in front of it; gate
// and up are one (linear_fc1).
inline bool adapts_qkv(const Job& job) {
  return job.adapters.is_on(LinearLayer::kQuery);
}
inline bool adapts_projection(const Job& job) {
  return job.adapters.is_on(LinearLayer::kOutput);
}
inline bool adapts_fc1(const Job& job) {
  return job.adapters.is_on(LinearLayer::kUp);
}
inline bool adapts_fc2(const Job& job) {
  return job.adapters.is_on(LinearLayer::kDown);
}
// in_proj and out_proj of a gated delta net.
inline bool adapts_mixer_input(const Job& job) {
  return job.adapters.is_on(LinearLayer::kMixerInput);
}
inline bool adapts_mixer_output(const Job& job) {
  return job.adapters.is_on(LinearLayer::kMixerOutput);
}
// eh_proj of prediction modules, which no name of Hugging Face's layers stands for: "all-linear"
// alone is it, too (ms-swift 4.6 swift/megatron/utils/utils.py, find_all_linears).
inline bool adapts_prediction(const Job& job) {
  return job.adapters.expert_targets == ExpertTargets::kAllLinear;
}

// Which linear layer of a block an adapter stands on.
enum class AdapterPlace {
  kQkv,
  kProjection,
  kFc1,
  kFc2,
  kExpertsFc1,
  kExpertsFc2,
  kSharedFc1,
  kSharedFc2,
  kMixerInput,
  kMixerOutput,
  kMixerSteps,  // in_proj_ba of a gated delta net whose product in front is two
  kPrediction,
  kQueryDown,  // of latent attention; plain queries are kQueryUp
  kQueryUp,
  kKeyValueDown,
  kKeyValueUp
};

// A [rank, inputs] and B [outputs, rank] as one rank has them. Of column-parallel layers A is whole
// on every tensor-parallel rank and B divided by outputs, of row-parallel ones A by inputs and B is
// whole, of replicated ones both are whole; experts have one each.
struct AdapterShape {
  AdapterPlace place = AdapterPlace::kQkv;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t count = 1;

  bool is_expert() const {
    return place == AdapterPlace::kExpertsFc1 || place == AdapterPlace::kExpertsFc2;
  }
};
// Of a layer or a prediction module, in the order of their construction.
std::vector<AdapterShape> adapters_of(const Job& job, const Plan& plan, BlockKind kind);
std::vector<AdapterShape> adapters_of(const Job& job, const Plan& plan, const LayerSpec& layer);

// Megatron-SWIFT's gated delta net gathers the sequence before its linear layers, which then work
// on all tokens without sequence parallelism (mcore-bridge 1.6.5
// src/mcore_bridge/model/modules/gated_delta_net.py, GatedDeltaNet.forward). Adapters and a product
// in front that is two are its alone.
bool gathers_in_front(const Job& job, const Plan& plan, const LayerSpec& layer);

// Elements of the trained tensors of a chunk in the order of their construction.
struct TrainedTensors {
  std::vector<std::int64_t> dense;
  std::vector<std::int64_t> expert;
};
TrainedTensors trained_tensors(const Job& job, const Plan& plan, const ChunkLayout& chunk);

// What of a stage gradients, buffers and the optimizer are for, where adapters are trained.
StageTensors trained_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                           const ContiguousBuffers& cut);

// Shapes of weights that have gradients, of one block on one rank.
std::vector<WeightShape> updated_weight_shapes(const Job& job, const Plan& plan, BlockKind kind);

// Trained elements for each that the model has.
double trained_share(const Job& job);

}  // namespace shardplan::megatron
