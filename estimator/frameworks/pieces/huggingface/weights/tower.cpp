// A tower for pictures or sound beside the text model, which batches of text never call: its
// parameters lie where they were loaded. Linear layers are quantized and adapted with the model's:
// transformers 5.17 integrations/bitsandbytes.py replace_with_bnb_linear takes every module but the
// head, peft 0.21 tuners/tuners_utils.py check_target_module_exists goes by names of modules.
#include <algorithm>
#include <array>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/weights/rules.h"
#include "estimator/plan/tower.h"

namespace shardplan::huggingface {
namespace {

// "q_proj" of "model.vision_tower.layers.0.self_attn.q_proj.weight".
std::string_view module_of(std::string_view parameter) {
  const std::string_view path = parameter.substr(0, parameter.rfind('.'));
  return path.substr(path.rfind('.') + 1);
}

bool is_adapted(const Adapters& adapters, std::string_view module) {
  if (adapters.rank == 0 || adapters.tower_targets == TowerTargets::kNone) {
    return false;
  }
  const auto* const found = std::ranges::find(kLinearLayerNames, module);
  return adapters.tower_targets == TowerTargets::kAll ||
         (found != kLinearLayerNames.end() &&
          adapters.is_on(static_cast<LinearLayer>(found - kLinearLayerNames.begin())));
}

}  // namespace

bool trains_unreached(const Job& job) {
  if (trains_unreached_sinks(job)) {
    return true;
  }
  const TowerUse use = job.profile.vision_tower;
  if (use == TowerUse::kAbsent || (use != TowerUse::kTrained && job.adapters.rank == 0)) {
    return false;
  }
  const NameFilter filter(job.name_rules);
  return std::ranges::any_of(
      tower_tensors(job.model.tower, job.model.hidden), [&](const TowerTensor& tensor) {
        return job.adapters.rank > 0
                   ? tensor.is_linear && is_adapted(job.adapters, module_of(tensor.name))
                   : filter.trains(tensor.name);
      });
}

void CausalLm::build_tower_linear(const TowerTensor& tensor) {
  Linear& linear = tower_.back();
  const Adapters& adapters = job_.adapters;
  linear.shape = {.inputs = tensor.columns, .outputs = tensor.rows};
  if (job_.quantized.kind != Quantization::kNone &&
      job_.profile.vision_tower != TowerUse::kFrozenFloats) {
    linear.quantized = job_.quantized;
    load_quantized(graph_, holder_, linear, stored_type(DType::kBf16), kTowerRow);
  } else {
    load(linear.weight, {"", tensor.name}, {tensor.rows, tensor.columns}, weights_);
  }
  if (!is_adapted(adapters, module_of(tensor.name))) {
    return;
  }
  for (eager::Parameter* each : {&linear.a, &linear.b, &linear.magnitude, &linear.rotation}) {
    each->is_reached = false;
  }
  holder_.load(linear.a, kAdapterRow, {adapters.rank, tensor.columns}, adapters.dtype, true);
  holder_.load(linear.b, kAdapterRow, {tensor.rows, adapters.rank}, adapters.dtype, true);
  if (adapters.decomposes_weights) {
    holder_.load(linear.magnitude, kAdapterRow, {tensor.rows, 1}, adapters.dtype, true);
  }
}

void CausalLm::build_tower() {
  class_path_ = "";
  builds_tower_ = true;
  for (const TowerTensor& tensor : tower_tensors(job_.model.tower, sizes_.hidden)) {
    using enum ModuleGroup::Kind;
    holder_.begin_group(tensor.block < 0 ? ModuleGroup{kTowerRest}
                                         : ModuleGroup{kTowerLayer, tensor.block});
    Linear& linear = tower_.emplace_back();
    linear.weight.is_reached = false;
    if (tensor.is_linear) {
      build_tower_linear(tensor);
    } else {
      load(linear.weight, {"", tensor.name}, {tensor.rows, tensor.columns}, weights_);
    }
  }
  builds_tower_ = false;
}

}  // namespace shardplan::huggingface
