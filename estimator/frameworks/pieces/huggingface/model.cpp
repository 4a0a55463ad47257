#include "estimator/frameworks/pieces/huggingface/model.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Parameter;
using eager::Tensor;

CausalLm::CausalLm(eager::Graph& graph, Holder& holder, const Job& job, const Plan& plan)
    : graph_(graph), holder_(holder), job_(job), class_(class_of(job.model)) {
  const BlockShape s = block_shape(job, plan);
  sizes_ = {.tokens = s.tokens,
            .sequence = job.sequence_length,
            .hidden = s.hidden,
            .vocab = job.model.vocab,
            .head_dim = job.model.head_dim,
            .query_heads = s.query_heads,
            .key_heads = s.key_value_heads};
  weights_ = job.profile.weights_dtype;
  compute_ = compute_dtype(plan);
  ends_ = job.profile.wide_ends ? DType::kFp32 : weights_;
  recomputes_ = plan.recompute.granularity == RecomputeGranularity::kFull;
  trains_all_ = job.adapters.rank == 0;
  layers_.resize(job.model.layers.size());
}

void CausalLm::build_linear(Linear& linear, LinearLayer place, eager::LinearShape shape,
                            bool has_bias) {
  linear.shape = shape;
  linear.quantized = job_.quantized;
  linear.compute_dtype = compute_;
  if (linear.quantized.kind == Quantization::kNone) {
    holder_.load(linear.weight, kParametersRow, {shape.outputs, shape.inputs}, weights_,
                 trains_all_);
  } else {
    load_quantized(graph_, holder_, linear, job_.profile.float_quant_storage);
  }
  if (has_bias) {
    holder_.load(linear.bias, kParametersRow, {shape.outputs, 1}, weights_, trains_all_);
  }
  if (job_.adapters.rank > 0 && job_.adapters.is_on(place)) {
    linear.rank = job_.adapters.rank;
    linear.dropout = job_.adapters.dropout;
    holder_.load(linear.a, kAdapterRow, {linear.rank, shape.inputs}, job_.adapters.dtype, true);
    holder_.load(linear.b, kAdapterRow, {shape.outputs, linear.rank}, job_.adapters.dtype, true);
    linear.adapter_dtype = holder_.flattens() ? linear.a.dtype : linear.a.data.dtype;
    if (job_.adapters.decomposes_weights) {
      holder_.load(linear.magnitude, kAdapterRow, {shape.outputs, 1}, job_.adapters.dtype, true);
    }
  }
}

void CausalLm::build_norm(Norm& norm, std::int64_t width) {
  norm.width = width;
  holder_.load(norm.weight, kParametersRow, {width, 1}, ends_, trains_all_);
}

void CausalLm::build_experts(Experts& experts) {
  const MoeSpec& moe = job_.model.moe;
  const std::int64_t columns = sizes_.hidden * moe.expert_ffn;
  holder_.load(experts.gate_up, kParametersRow, {moe.num_experts, 2 * columns}, weights_,
               trains_all_);
  holder_.load(experts.down, kParametersRow, {moe.num_experts, columns}, weights_, trains_all_);
  holder_.load(experts.router, kParametersRow, {moe.num_experts, sizes_.hidden}, weights_,
               trains_all_);
}

void CausalLm::build_layer(Layer& layer, bool has_experts) {
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t query = sizes_.query_heads * sizes_.head_dim;
  const std::int64_t key = sizes_.key_heads * sizes_.head_dim;
  const std::int64_t ffn = job_.model.ffn;
  using enum LinearLayer;
  build_linear(layer.query, kQuery, {hidden, query}, job_.model.qkv_bias);
  build_linear(layer.key, kKey, {hidden, key}, job_.model.qkv_bias);
  build_linear(layer.value, kValue, {hidden, key}, job_.model.qkv_bias);
  build_linear(layer.output, kOutput, {query, hidden}, job_.model.attention_output_bias);
  if (job_.model.qk_norm) {
    build_norm(layer.query_norm, sizes_.head_dim);
    build_norm(layer.key_norm, sizes_.head_dim);
  }
  if (has_experts) {
    build_experts(layer.experts);
  } else {
    build_linear(layer.gate, kGate, {hidden, ffn}, job_.model.ffn_bias);
    build_linear(layer.up, kUp, {hidden, ffn}, job_.model.ffn_bias);
    build_linear(layer.down, kDown, {ffn, hidden}, job_.model.ffn_bias);
  }
  build_norm(layer.attention_norm, hidden);
  build_norm(layer.ffn_norm, hidden);
  if (job_.model.norms_per_layer > 2) {
    build_norm(layer.after_attention, hidden);
    build_norm(layer.after_ffn, hidden);
  }
}

// The embedding or the head; peft's ModulesToSaveWrapper trains a copy beside it.
void CausalLm::load_end(eager::Parameter& table, bool has_copy) {
  const Shape shape = {sizes_.vocab, sizes_.hidden};
  table.is_end = true;
  if (!has_copy) {
    return holder_.load(table, kParametersRow, shape, ends_, trains_all_);
  }
  holder_.load(originals_.emplace_back(), kParametersRow, shape, ends_, false);
  holder_.load(table, kAdapterRow, shape, job_.adapters.copies_dtype, true);
}

void CausalLm::build() {
  using enum ModuleGroup::Kind;
  holder_.begin_group({kEmbedding});
  table_.is_embedding = true;
  load_end(table_, job_.adapters.trains_table);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    holder_.begin_group({kLayer, static_cast<std::int64_t>(i)});
    build_layer(layers_[i], job_.model.layers[i].is_moe);
  }
  holder_.begin_group({kFinalNorm});
  build_norm(final_norm_, sizes_.hidden);
  if (!job_.model.tied_embeddings) {
    holder_.begin_group({kHead});
    load_end(head_, job_.adapters.trains_head);
  }
}

std::vector<eager::Parameter*> CausalLm::trained() {
  std::vector<eager::Parameter*> found;
  const auto take = [&found](eager::Parameter& parameter) {
    if (parameter.is_trained) {
      found.push_back(&parameter);
    }
  };
  const auto take_linear = [&take](Linear& linear) {
    for (eager::Parameter* each :
         {&linear.weight, &linear.bias, &linear.a, &linear.b, &linear.magnitude}) {
      take(*each);
    }
  };
  take(table_);
  for (Layer& layer : layers_) {
    for (Linear* each : {&layer.query, &layer.key, &layer.value, &layer.output}) {
      take_linear(*each);
    }
    take(layer.query_norm.weight);
    take(layer.key_norm.weight);
    for (Linear* each : {&layer.gate, &layer.up, &layer.down}) { take_linear(*each); }
    take(layer.experts.gate_up);
    take(layer.experts.down);
    take(layer.experts.router);
    for (Norm* each :
         {&layer.attention_norm, &layer.ffn_norm, &layer.after_attention, &layer.after_ffn}) {
      take(each->weight);
    }
  }
  take(final_norm_.weight);
  take(head_);
  return found;
}

// The residual stream is in the type of the table; norms compute in fp32.
Tensor CausalLm::norm_output(Norm& norm, const Tensor& input, bool is_of_heads) {
  const InRow row(graph_.tape, kNormRow);
  if (uses_liger() && !(is_of_heads && job_.profile.liger_kernel == LigerKernel::kThrough082)) {
    return eager::liger_norm(graph_, norm.weight.data, input, class_.reuses_liger_gradient);
  }
  switch (class_.norm) {
    case NormKind::kLlama: return llama_norm(graph_, norm, input);
    case NormKind::kGemma: return gemma_norm(graph_, norm, input);
  }
  return {};
}

bool CausalLm::is_eager() const {
  return job_.profile.attention_backend == AttentionBackend::kUnfused;
}

AttentionSizes CausalLm::attention_sizes() const {
  return {.tokens = sizes_.tokens,
          .sequence = sizes_.sequence,
          .query_heads = sizes_.query_heads,
          .key_heads = sizes_.key_heads,
          .caps_scores = job_.model.caps_scores};
}

// x*cos + rotate_half(x)*sin.
Tensor CausalLm::rotate(const Tensor& input, const Shared& shared) {
  if (uses_liger()) {
    return eager::liger_rotate(graph_, input);
  }
  const Tensor by_cosines = eager::multiply(graph_, input, shared.cosines);
  Tensor by_sines;
  {
    const Tensor turned = eager::rotate_half(graph_, input);
    by_sines = eager::multiply(graph_, turned, shared.sines);
  }
  return eager::add(graph_, by_cosines, by_sines);
}

Tensor CausalLm::attention_output(Layer& layer, const Shared& shared, const Tensor& input) {
  const InRow row(graph_.tape, kAttentionRow);
  const auto project_heads = [&](Linear& linear) {
    return eager::copied_back(graph_, project(graph_, linear, input));
  };
  const auto norm_heads = [&](Norm& head_norm, Tensor& heads) {
    if (job_.model.qk_norm) {
      heads = norm(head_norm, heads, true);
    }
  };
  const AttentionSizes sizes = attention_sizes();
  Tensor query = project_heads(layer.query);
  if (!class_.norms_heads_last) {
    norm_heads(layer.query_norm, query);
  }
  Tensor key = project_heads(layer.key);
  if (!class_.norms_heads_last) {
    norm_heads(layer.key_norm, key);
  }
  const Tensor value = project(graph_, layer.value, input);
  if (class_.norms_heads_last) {
    norm_heads(layer.query_norm, query);
    norm_heads(layer.key_norm, key);
  }
  {
    Tensor turned = rotate(query, shared);
    key = rotate(key, shared);
    query = std::move(turned);
  }
  const Tensor output = is_eager()
                            ? eager_attention(graph_, query, key, value, shared.mask, sizes)
                            : scaled_dot_product(graph_, query, key, value, shared.mask, sizes);
  return project(graph_, layer.output, output);
}

Tensor CausalLm::ffn_output(Layer& layer, const Tensor& input) {
  const InRow row(graph_.tape, kFfnRow);
  if (layer.experts.down.data.is_defined()) {
    return experts_forward(graph_, layer.experts, input,
                           {.tokens = sizes_.tokens,
                            .hidden = sizes_.hidden,
                            .ffn = job_.model.moe.expert_ffn,
                            .experts = job_.model.moe.num_experts,
                            .chosen = job_.model.moe.topk,
                            .is_eager = job_.profile.eager_experts});
  }
  Tensor product;
  {
    Tensor gate = project(graph_, layer.gate, input);
    if (!uses_liger()) {
      gate = activation(layer, gate);
    }
    const Tensor up = project(graph_, layer.up, input);
    product =
        uses_liger() ? eager::liger_swiglu(graph_, gate, up) : eager::multiply(graph_, gate, up);
  }
  return project(graph_, layer.down, product);
}

Tensor CausalLm::layer_result(std::size_t place, const Tensor& input) {
  const InRow row(graph_.tape, kResidualRow);
  Layer& layer = layers_[place];
  const bool has_four_norms = job_.model.norms_per_layer > 2;
  Tensor hidden = norm(layer.attention_norm, input);
  hidden = attention(layer, shared_.of(job_.model.layers[place]), hidden);
  if (has_four_norms) {
    hidden = norm(layer.after_attention, hidden);
  }
  hidden = eager::add(graph_, input, hidden);
  const Tensor residual = hidden;
  hidden = norm(layer.ffn_norm, hidden);
  hidden = ffn(layer, hidden);
  if (has_four_norms) {
    hidden = norm(layer.after_ffn, hidden);
  }
  return eager::add(graph_, residual, hidden);
}

// GradientCheckpointingLayer: hooks of the module itself run within its checkpoint, which with
// reentrance runs them again.
Tensor CausalLm::layer_output(std::size_t index, const Tensor& input) {
  const ModuleGroup group = {ModuleGroup::Kind::kLayer, static_cast<std::int64_t>(index)};
  const auto run = [this, index](const Tensor& x) { return layer_forward(index, x); };
  const bool is_reentrant = recomputes_ && job_.profile.reentrant_checkpoint;
  if (is_reentrant && holder_.is_within_checkpoints()) {
    return eager::reentrant_checkpoint(graph_, input, [this, group, run](const Tensor& x) {
      return holder_.leave(group, run(holder_.enter(group, x)));
    });
  }
  Tensor output;
  {
    const Tensor entered = holder_.enter(group, input);
    output = is_reentrant  ? eager::reentrant_checkpoint(graph_, entered, run)
             : recomputes_ ? eager::checkpoint(graph_, entered, run)
                           : run(entered);
  }
  return holder_.leave(group, output);
}

// enable_input_require_grads.
Tensor CausalLm::with_gradient(const Tensor& hidden) {
  const bool asks = recomputes_ && !trains_all_ && !hidden.requires_grad();
  return asks ? graph_.make_leaf(hidden, [](const Tensor&) {}) : hidden;
}

Tensor CausalLm::decoder(const Tensor& token_ids) {
  const InRow row(graph_.tape, kResidualRow);
  using enum ModuleGroup::Kind;
  Tensor hidden = embed(holder_.enter({kEmbedding}, token_ids));
  if (class_.scales_embedding) {
    hidden = eager::scale(graph_, hidden);
  }
  if (!job_.model.tied_embeddings) {
    hidden = holder_.leave({kEmbedding}, hidden);
  }
  hidden = with_gradient(hidden);
  call_rotary();
  shared_ = shared_by_layers(graph_, job_, attention_sizes(),
                             {.table = table_.data.dtype, .norms = ends_});
  for (std::size_t i = 0; i < layers_.size(); ++i) { hidden = layer_output(i, hidden); }
  hidden = norm(final_norm_, holder_.enter({kFinalNorm}, hidden));
  if (!recomputes_) {
    drop_shared();
  }
  return hidden;
}

// ForCausalLMLoss: logits in fp32, labels shifted by padding. Logits are returned with the loss.
Tensor CausalLm::stock_loss(const Tensor& hidden, const Tensor& labels, Tensor& logits) {
  logits = head_product(hidden);
  logits = holder_.leave({ModuleGroup::Kind::kHead}, logits);
  if (job_.model.caps_logits) {
    logits = eager::soft_capped(graph_, std::move(logits));
  }
  const Tensor wide = eager::to(graph_, logits, DType::kFp32);
  Tensor shifted;
  {
    const InRow row(graph_.tape, kTokensRow);
    const Tensor padded = graph_.make(labels.elements, DType::kInt64);
    shifted = graph_.make(labels.elements, DType::kInt64);
  }
  return eager::scale(graph_, eager::cross_entropy(graph_, wide, shifted));
}

Tensor CausalLm::loss(const Tensor& hidden, const Tensor& labels, Tensor& logits) {
  const InRow row(graph_.tape, kLogitsRow);
  const HeadShape shape = {.tokens = sizes_.tokens,
                           .sequences = sizes_.tokens / sizes_.sequence,
                           .hidden = sizes_.hidden,
                           .vocab = sizes_.vocab,
                           .caps_logits = job_.model.caps_logits};
  read_head();
  switch (job_.profile.head_loss) {
    case HeadLoss::kStock: return stock_loss(hidden, labels, logits);
    case HeadLoss::kChunked: return chunked_loss(graph_, hidden, head().data, shape);
    case HeadLoss::kFusedLinear:
      return fused_linear_loss(graph_, hidden, head().data, shape,
                               job_.profile.liger_kernel == LigerKernel::kThrough082);
    case HeadLoss::kCutCrossEntropy: return cut_cross_entropy(graph_, hidden, head().data, shape);
  }
  return {};
}

void CausalLm::drop_shared() {
  shared_ = {};
}

Tensor CausalLm::forward() {
  const InRow tokens_row(graph_.tape, kTokensRow);
  graph_.tape.begin(MomentKind::kForward);
  const Tensor token_ids = graph_.make(sizes_.tokens, DType::kInt64);
  const Tensor labels = graph_.make(sizes_.tokens, DType::kInt64);
  Tensor logits;
  Tensor sum = call_whole(token_ids, [&](const Tensor& ids) {
    const Tensor hidden = call_decoder(ids);
    graph_.tape.begin(MomentKind::kLossForward);
    return loss(hidden, labels, logits);
  });
  sum = holder_.leave_model(sum);
  if (graph_.autocast) {
    graph_.end_autocast();
  }
  if (graph_.autocast && logits.is_defined()) {  // convert_outputs_to_fp32
    const InRow row(graph_.tape, kLogitsRow);
    logits = eager::to(graph_, logits, DType::kFp32);
  }
  if (holder_.copies_outputs() && logits.is_defined()) {
    const InRow row(graph_.tape, kLogitsRow);
    logits = graph_.make(logits.elements, logits.dtype);
  }
  holder_.end_forward();
  return sum;
}

}  // namespace shardplan::huggingface
