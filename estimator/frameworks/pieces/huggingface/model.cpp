#include "estimator/frameworks/pieces/huggingface/model.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Parameter;
using eager::Tensor;

namespace {

Sizes sizes_of(const Job& job, const Plan& plan) {
  const BlockShape s = block_shape(job, plan);
  return {.tokens = s.tokens,
          .sequence = job.sequence_length,
          .hidden = s.hidden,
          .vocab = job.model.vocab,
          .head_dim = job.model.head_dim,
          .query_heads = s.query_heads,
          .key_heads = s.key_value_heads};
}

}  // namespace

CausalLm::CausalLm(eager::Graph& graph, Holder& holder, const Job& job, const Plan& plan)
    : graph_(graph),
      holder_(holder),
      job_(job),
      class_(class_of(job.model)),
      sizes_(sizes_of(job, plan)),
      run_{.graph = graph,
           .job = job,
           .family = class_,
           .sizes = sizes_,
           .recomputes = plan.recompute.granularity == RecomputeGranularity::kFull} {
  weights_ = job.profile.weights_dtype;
  compute_ = compute_dtype(plan);
  ends_ = job.profile.wide_ends ? DType::kFp32 : weights_;
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
  if (has_adapter(job_, place)) {
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

void CausalLm::build_ffn(FeedForward& ffn, std::int64_t width, bool has_bias) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  if (class_.has_one_gate_up) {
    build_linear(ffn.gate_up, kGate, {hidden, 2 * width}, has_bias);
  } else {
    build_linear(ffn.gate, kGate, {hidden, width}, has_bias);
    build_linear(ffn.up, kUp, {hidden, width}, has_bias);
  }
  build_linear(ffn.down, kDown, {width, hidden}, has_bias);
}

void CausalLm::build_experts(Layer& layer) {
  const MoeSpec& moe = job_.model.moe;
  const std::int64_t columns = sizes_.hidden * moe.expert_ffn;
  Experts& experts = layer.experts;
  holder_.load(experts.gate_up, kParametersRow, {moe.num_experts, 2 * columns}, weights_,
               trains_all_);
  holder_.load(experts.down, kParametersRow, {moe.num_experts, columns}, weights_, trains_all_);
  holder_.load(experts.router, kParametersRow, {moe.num_experts, sizes_.hidden}, weights_,
               trains_all_);
  if (const ExpertAdapters ranks = expert_adapters(job_); ranks.gate_up > 0 || ranks.down > 0) {
    const auto load = [&](Parameter& parameter, Shape shape) {
      if (shape.elements() > 0) {
        holder_.load(parameter, kAdapterRow, shape, job_.adapters.dtype, true);
      }
    };
    load(experts.gate_up_a, {ranks.gate_up * moe.num_experts, sizes_.hidden});
    load(experts.gate_up_b, {2 * moe.expert_ffn, ranks.gate_up * moe.num_experts});
    load(experts.down_a, {ranks.down * moe.num_experts, moe.expert_ffn});
    load(experts.down_b, {sizes_.hidden, ranks.down * moe.num_experts});
  }
  if (moe.shared_ffn > 0) {
    build_ffn(layer.shared_experts, moe.shared_ffn, false);
  }
  if (moe.shared_gate) {
    holder_.load(layer.shared_gate, kParametersRow, {1, sizes_.hidden}, weights_, trains_all_);
  }
}

// Adapters on all linear layers, and so on keys and values, stand on these projections.
void CausalLm::build_latent(Layer& layer) {
  using enum LinearLayer;
  const MlaSpec& mla = job_.model.mla;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t query = sizes_.query_heads * mla.qk_head_dim();
  LatentProjections& latent = layer.latent;
  if (mla.q_lora_rank == 0) {
    build_linear(layer.query, kQuery, {hidden, query}, false);
  } else {
    build_linear(latent.query_down, kKey, {hidden, mla.q_lora_rank}, job_.model.qkv_bias);
    build_norm(latent.query_norm, mla.q_lora_rank);
    build_linear(latent.query_up, kKey, {mla.q_lora_rank, query}, false);
  }
  build_linear(latent.key_value_down, kKey, {hidden, mla.kv_lora_rank + mla.qk_rope_head_dim},
               job_.model.qkv_bias);
  build_norm(latent.key_value_norm, mla.kv_lora_rank);
  build_linear(latent.key_value_up, kKey,
               {mla.kv_lora_rank, sizes_.query_heads * (mla.qk_nope_head_dim + mla.v_head_dim)},
               false);
}

void CausalLm::build_attention(Layer& layer) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t query = sizes_.query_heads * sizes_.head_dim;
  const std::int64_t key = sizes_.key_heads * sizes_.head_dim;
  const bool has_bias = job_.model.qkv_bias;
  if (job_.model.is_mla()) {
    build_latent(layer);
  } else if (class_.has_one_qkv) {
    build_linear(layer.query_key_value, kQuery, {hidden, query + 2 * key}, has_bias);
  } else {
    build_linear(layer.query, kQuery, {hidden, query}, has_bias);
    build_linear(layer.key, kKey, {hidden, key}, has_bias);
    build_linear(layer.value, kValue, {hidden, key}, has_bias);
  }
  build_linear(layer.output, kOutput, {sizes_.query_heads * job_.model.v_head_dim(), hidden},
               job_.model.attention_output_bias);
  if (job_.model.qk_norm) {
    build_norm(layer.query_norm, sizes_.head_dim);
    build_norm(layer.key_norm, sizes_.head_dim);
  }
}

void CausalLm::build_layer(Layer& layer, bool has_experts) {
  build_attention(layer);
  if (has_experts) {
    build_experts(layer);
  } else {
    build_ffn(layer.ffn, job_.model.ffn, job_.model.ffn_bias);
  }
  build_norm(layer.attention_norm, sizes_.hidden);
  build_norm(layer.ffn_norm, sizes_.hidden);
  if (job_.model.norms_per_layer > 2) {
    build_norm(layer.after_attention, sizes_.hidden);
    build_norm(layer.after_ffn, sizes_.hidden);
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
  const auto take_ffn = [&take_linear](FeedForward& ffn) {
    for (Linear* each : {&ffn.gate_up, &ffn.gate, &ffn.up, &ffn.down}) { take_linear(*each); }
  };
  take(table_);
  for (Layer& layer : layers_) {
    LatentProjections& latent = layer.latent;
    for (Linear* each :
         {&layer.query, &latent.query_down, &latent.query_up, &latent.key_value_down,
          &latent.key_value_up, &layer.key, &layer.value, &layer.output, &layer.query_key_value}) {
      take_linear(*each);
    }
    for (Norm* each :
         {&layer.query_norm, &layer.key_norm, &latent.query_norm, &latent.key_value_norm}) {
      take(each->weight);
    }
    take_ffn(layer.ffn);
    Experts& experts = layer.experts;
    for (Parameter* each : {&experts.gate_up, &experts.down, &experts.router, &experts.gate_up_a,
                            &experts.gate_up_b, &experts.down_a, &experts.down_b}) {
      take(*each);
    }
    take_ffn(layer.shared_experts);
    take(layer.shared_gate);
    for (Norm* each :
         {&layer.attention_norm, &layer.ffn_norm, &layer.after_attention, &layer.after_ffn}) {
      take(each->weight);
    }
  }
  take(final_norm_.weight);
  take(head_);
  return found;
}

// GradientCheckpointingLayer: hooks of the module itself run within its checkpoint, which with
// reentrance runs them again.
Tensor CausalLm::layer_output(std::size_t index, const Tensor& input) {
  const ModuleGroup group = {ModuleGroup::Kind::kLayer, static_cast<std::int64_t>(index)};
  const auto run = [this, index](const Tensor& x) {
    return layer_forward(run_, layers_[index], index, shared_, x);
  };
  const bool is_reentrant = run_.recomputes && job_.profile.reentrant_checkpoint;
  if (is_reentrant && holder_.is_within_checkpoints()) {
    return eager::reentrant_checkpoint(graph_, input, [this, group, run](const Tensor& x) {
      return holder_.leave(group, run(holder_.enter(group, x)));
    });
  }
  Tensor output;
  {
    const Tensor entered = holder_.enter(group, input);
    output = is_reentrant               ? eager::reentrant_checkpoint(graph_, entered, run)
             : run_.checkpoints_layer() ? eager::checkpoint(graph_, entered, run)
                                        : run(entered);
  }
  return holder_.leave(group, output);
}

// enable_input_require_grads, for the model's own checkpoints.
Tensor CausalLm::with_gradient(const Tensor& hidden) {
  const bool asks = run_.checkpoints_layer() && !trains_all_ && !hidden.requires_grad();
  return asks ? graph_.make_leaf(hidden, [](const Tensor&) {}) : hidden;
}

Tensor CausalLm::decoder(const Tensor& token_ids) {
  const InRow row(graph_.tape, kResidualRow);
  using enum ModuleGroup::Kind;
  Tensor hidden = embed(holder_.enter({kEmbedding}, token_ids));
  if (class_.embedding_scale == EmbeddingScale::kInModule) {
    hidden = eager::scale(graph_, hidden);
  }
  if (!job_.model.tied_embeddings) {
    hidden = holder_.leave({kEmbedding}, hidden);
  }
  hidden = with_gradient(hidden);
  if (class_.embedding_scale == EmbeddingScale::kBehindModule) {
    hidden = eager::scale(graph_, hidden);
  }
  call_rotary();
  shared_ = shared_by_layers(graph_, job_, run_.attention_sizes(),
                             {.table = table_.data.dtype, .norms = ends_});
  for (std::size_t i = 0; i < layers_.size(); ++i) { hidden = layer_output(i, hidden); }
  hidden = apply_norm(run_, final_norm_, holder_.enter({kFinalNorm}, hidden));
  if (!run_.recomputes) {
    drop_shared();
  }
  return hidden;
}

// ForCausalLMLoss: logits in fp32, labels shifted by padding. Logits are returned with the loss.
Tensor CausalLm::stock_loss(const Tensor& hidden, const Tensor& labels, Tensor& logits) {
  logits = head_product(hidden);
  logits = holder_.leave({ModuleGroup::Kind::kHead}, logits);
  if (class_.scales_logits) {
    logits = eager::scale(graph_, logits);
  }
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
                           .scales_logits = class_.scales_logits,
                           .caps_logits = job_.model.caps_logits};
  const bool is_liger = job_.profile.head_loss == HeadLoss::kFusedLinear;
  if (is_liger && class_.liger == LigerUse::kNone) {
    return stock_loss(hidden, labels, logits);
  }
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

void CausalLm::train(bool syncs, std::optional<DType> autocast) {
  holder_.begin_microbatch(syncs);
  graph_.tape.enter_thread(false);
  graph_.autocast = autocast;
  const Tensor loss = forward();
  graph_.end_autocast();
  graph_.autocast.reset();
  graph_.tape.begin(MomentKind::kLossBackward);
  graph_.tape.enter_thread(true);
  graph_.backward(loss, {});
  graph_.tape.begin(MomentKind::kReduction);
  holder_.end_backward();
  graph_.drop_graph();
  drop_shared();
}

}  // namespace shardplan::huggingface
