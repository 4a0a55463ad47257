// What of a model a run trains, and in which types it computes: as its options say together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::huggingface {

// A linear layer of a decoder layer: weight [outputs, inputs].
struct LinearWeight {
  LinearLayer place = LinearLayer::kQuery;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;

  std::int64_t elements() const { return inputs * outputs; }
};
// Of one layer, in place: prices of time ask for them.
class LinearWeights {
 public:
  void add(const LinearWeight& weight) { weights_[count_++] = weight; }
  const LinearWeight* begin() const { return weights_.data(); }
  const LinearWeight* end() const { return weights_.data() + count_; }

 private:
  static constexpr std::size_t kMost = 12;  // attention beside a state space, and an FFN
  std::array<LinearWeight, kMost> weights_{};
  std::size_t count_ = 0;
};
// Those of attention or what mixes tokens in its place, and of an FFN or shared experts; routers
// and weights of experts are none.
LinearWeights linear_weights(const ModelSpec& model, const LayerSpec& layer);

// Whether a linear layer of that place has an adapter. Projections of latent attention are those of
// keys.
bool has_adapter(const Job& job, LinearLayer place);
// Whether a bottleneck stands behind the FFN whose last layer is of that place.
inline bool has_bottleneck(const Job& job, LinearLayer place) {
  return job.adapters.rank > 0 && job.adapters.kind == AdapterKind::kBottleneck &&
         place == LinearLayer::kDown && job.adapters.is_on(place);
}
inline bool is_adapted(const Job& job, LinearLayer place) {
  return has_adapter(job, place) || has_bottleneck(job, place);
}
// Adapters on linear layers of one layer, and bottlenecks; those on whole weights of experts are
// none of them.
double num_adapters(const Job& job, const LayerSpec& layer);
// Whether any linear layer or expert of the model has one.
bool has_adapters(const Job& job);
// peft refuses adapters on output projections of state spaces, whose kernels take the weight alone
// (tuners/tuners_utils.py _check_lora_target_modules_mamba): adapters on all layers leave them out.
bool refuses_adapted_outputs(const ModelSpec& model);
// Layers without experts, and shared experts, whose projections are linear layers.
bool has_ffn_modules(const ModelSpec& model);
// Ranks of the adapters on all experts of a layer, and on their router; 0: none. One of gate and up
// together has twice the rank.
struct ExpertAdapters {
  std::int64_t gate_up = 0;
  std::int64_t down = 0;
  std::int64_t router = 0;

  bool are_none() const { return gate_up == 0 && down == 0; }
};
ExpertAdapters expert_adapters(const Job& job);

// count_parameters of the models that are modelled, without a list of their tensors.
std::int64_t model_elements(const ModelSpec& model);
// Elements of A and B of all adapters, and of DoRA's magnitudes.
std::int64_t adapter_elements(const Job& job);
// Elements that the optimizer updates, over all that the model has.
double trained_share(const Job& job);

// Whether DistributedDataParallel looks for parameters without gradients: asked to, or by the
// Trainer for a model that recomputes nothing (transformers 5.17 trainer.py
// _build_accelerator_args).
bool finds_unused(const Job& job, const Plan& plan);

// What autocast casts to, and FSDP2 gathers.
DType compute_dtype(const Plan& plan);
// Under autocast, which FSDP2 does without, products cast weights of fp32.
bool uses_autocast(const Job& job, const Plan& plan);
bool casts_weights(const Job& job, const Plan& plan);
// The residual stream is in fp32 beside products in bf16: in the type of the embedding.
bool has_wide_stream(const Job& job, const Plan& plan);

// Bytes of an element of trained parameters as the optimizer has them, moments and gradients alike:
// FSDP2's shards are fp32 (accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model).
double optimizer_element_bytes(const Job& job, const Plan& plan);
// Of gradients as products leave them for autograd to add up: FSDP2's are in the gathered type.
double autograd_element_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::huggingface
