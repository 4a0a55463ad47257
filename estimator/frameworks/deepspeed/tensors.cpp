#include "estimator/frameworks/deepspeed/tensors.h"

#include "estimator/frameworks/deepspeed/liger.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::deepspeed {
namespace {

// Knows the parameters of a model that nobody builds.
class Listed final : public huggingface::Holder {
 public:
  using Holder::Holder;

  void load(eager::Parameter& parameter, const eager::Label&, const huggingface::Shape& shape,
            DType dtype, bool is_trained) override {
    parameter.dtype = dtype;
    parameter.is_trained = is_trained;
    parameter.data.elements = shape.elements();
    if (!is_trained) {
      frozen_.push_back(&parameter);
    }
  }
  const std::vector<eager::Parameter*>& frozen() const { return frozen_; }

 private:
  std::vector<eager::Parameter*> frozen_;
};

}  // namespace

std::vector<std::int64_t> deepspeed_layer_tensors(const ModelSpec& model) {
  const std::int64_t query = model.hidden * model.num_heads * model.head_dim;
  const std::int64_t key = model.hidden * model.num_kv_heads * model.head_dim;
  const std::int64_t ffn = model.hidden * model.ffn;
  std::vector<std::int64_t> layer = {query, key, key, query};
  if (model.qk_norm) {
    layer.insert(layer.end(), 2, model.head_dim);
  }
  layer.insert(layer.end(), {ffn, ffn, ffn, model.hidden, model.hidden});
  return layer;
}

std::vector<std::int64_t> deepspeed_tensors(const ModelSpec& model) {
  const std::vector<std::int64_t> layer = deepspeed_layer_tensors(model);
  const std::int64_t table = model.vocab * model.hidden;
  std::vector<std::int64_t> tensors = {table};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    tensors.insert(tensors.end(), layer.begin(), layer.end());
  }
  tensors.push_back(model.hidden);
  if (!model.tied_embeddings) {
    tensors.push_back(table);
  }
  return tensors;
}

namespace {

bool is_llama(const ModelSpec& model) {
  const bool adds_biases = model.qkv_bias || model.attention_output_bias || model.ffn_bias;
  const huggingface::ModelClass& family = huggingface::class_of(model);
  const bool has_llama_norms = model.norms_per_layer == 2 &&
                               family.norm == huggingface::NormKind::kLlama &&
                               family.head_norms != huggingface::HeadNorms::kBehindRotary;
  return has_llama_norms && !huggingface::casts_heads(family.rotary) && model.gated_ffn &&
         !model.is_mla() && !missing_part(model, {}) && !adds_biases && !model.has_moe_layers() &&
         !model.caps_logits && !model.caps_scores;
}

}  // namespace

bool plays_operators(const Job& job, const Plan& plan) {
  const bool recomputes = plan.recompute.granularity == RecomputeGranularity::kFull;
  return job.adapters.rank > 0 || !job.name_rules.empty() ||
         job.profile.vision_tower != TowerUse::kAbsent || !is_llama(job.model) || plan.cp > 1 ||
         job.profile.head_loss != HeadLoss::kStock ||
         job.profile.objective != Objective::kNextToken || plan.zero == 0 ||
         (recomputes && !job.profile.reentrant_checkpoint);
}

// The engine casts all parameters to the type in which it trains, but for those of a model that
// ZeRO-3 has divided while it was made, as transformers makes what it does not quantize
// (runtime/engine.py _cast_module_mixed_precision; transformers modeling_utils.py, zero.Init).
Job as_trained(const Job& job, const Plan& plan) {
  Job trained = job;
  const DType half = activation_dtype(plan.precision);
  trained.profile.weights_dtype = half;
  trained.adapters.copies_dtype = half;
  const bool is_divided_first = plan.zero == 3 && job.quantized.kind == Quantization::kNone;
  if (!is_divided_first || job.profile.casts_divided_parameters) {
    trained.adapters.dtype = half;
  }
  if (uses_liger(job) && job.profile.head_loss == HeadLoss::kStock &&
      job.profile.objective == Objective::kNextToken) {
    trained.profile.head_loss = HeadLoss::kFusedLinear;
  }
  return trained;
}

std::vector<ZeroTensor> held_tensors(const Job& job, const Plan& plan) {
  std::vector<ZeroTensor> tensors;
  if (!plays_operators(job, plan)) {
    for (const std::int64_t elements : deepspeed_tensors(job.model)) {
      tensors.push_back({.elements = elements, .data = nullptr});
    }
    return tensors;
  }
  const Job trained = as_trained(job, plan);
  eager::Graph graph(trained.profile.fixed_workspace_bytes, trained.cluster.gpu.num_sms);
  Listed listed(graph);
  huggingface::CausalLm model(graph, listed, trained, plan);
  model.build();
  const auto add = [&](const eager::Parameter& parameter) {
    tensors.push_back({.elements = parameter.data.elements,
                       .dtype = parameter.dtype,
                       .is_trained = parameter.is_trained,
                       .data = nullptr});
  };
  for (const eager::Parameter* parameter : model.trained()) { add(*parameter); }
  for (const eager::Parameter* parameter : listed.frozen()) { add(*parameter); }
  return tensors;
}

std::vector<std::int64_t> trained_tensors(const Job& job, const Plan& plan) {
  std::vector<std::int64_t> elements;
  for (const ZeroTensor& tensor : held_tensors(job, plan)) {
    if (tensor.is_trained) {
      elements.push_back(tensor.elements);
    }
  }
  return elements;
}

}  // namespace shardplan::deepspeed
