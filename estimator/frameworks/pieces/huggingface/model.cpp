#include "estimator/frameworks/pieces/huggingface/model.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/adaptive_adapters.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/objectives/anchored.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::huggingface {

using eager::InRow;
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
          .key_heads = s.key_value_heads,
          .cp = plan.cp,
          .rings = plan.cp > 1 && plan.cp_method != CpMethod::kA2a,
          .tp = plan.tp,
          .ep = plan.ep};
}

}  // namespace

CausalLm::CausalLm(eager::Graph& graph, Holder& holder, const Job& job, const Plan& plan)
    : graph_(graph),
      holder_(holder),
      job_(job),
      class_(class_of(job.model)),
      sizes_(sizes_of(job, plan)),
      run_{.graph = graph,
           .holder = holder,
           .job = job,
           .family = class_,
           .sizes = sizes_,
           .recomputes = plan.recompute.granularity == RecomputeGranularity::kFull,
           .gathers_keys = plan.cp_method == CpMethod::kAllGather},
      filter_(job.name_rules) {
  weights_ = job.profile.weights_dtype;
  compute_ = compute_dtype(plan);
  ends_ = job.profile.wide_ends ? DType::kFp32 : weights_;
  trains_all_ = job.adapters.rank == 0;
  // The Trainer has use_cache False, as layers have that are computed again.
  run_.cache = run_.recomputes || job.profile.loop == TrainerLoop::kTrainer ? nullptr : &cache_;
  run_.shared_keys = &shared_keys_;
  run_.per_layer_inputs = has_per_layer_inputs() ? &per_layer_inputs_ : nullptr;
  layers_.resize(job.model.layers.size());
  predictions_.resize(static_cast<std::size_t>(class_.idle_predictions));
  divided_ =
      job.profile.tensor_parallel_dtensors ? eager::Divided::kDtensor : eager::Divided::kPlain;
  const ActivationOffload kind = job.profile.activation_offload;
  hosts_inputs_ = plan.offload.activations && kind == ActivationOffload::kLayerInputs;
  if (plan.offload.activations && !hosts_inputs_) {
    host_tensors_ =
        std::make_shared<eager::HostTensors>(graph, kind == ActivationOffload::kStreams,
                                             job.profile.offload_spares_weights && plan.zero == 0);
  }
}

Tensor CausalLm::reentrant(std::size_t index, const Tensor& input,
                           const eager::CheckpointedFunction& run) {
  Tensor* const of_layer = has_per_layer_inputs() ? &per_layer_inputs_[index] : nullptr;
  return hosts_inputs_ ? eager::host_checkpoint(graph_, input, run, of_layer)
                       : eager::reentrant_checkpoint(graph_, input, run, of_layer);
}

// LLaMA-Factory ff6d4d1 model/model_utils/checkpointing.py, get_custom_gradient_checkpointing_func:
// layers without trained parameters run plainly, the input of others asks for a gradient.
bool CausalLm::checkpoints(std::size_t index) const {
  return run_.checkpoints_layer() &&
         (job_.profile.checkpoints_frozen || layers_[index].is_trained || !trains_all_);
}

// GradientCheckpointingLayer: hooks of the module itself run within its checkpoint, which with
// reentrance runs them again.
Tensor CausalLm::layer_output(std::size_t index, const Tensor& input) {
  const ModuleGroup group = {ModuleGroup::Kind::kLayer, static_cast<std::int64_t>(index)};
  const auto run = [this, index](const Tensor& x) {
    return layer_forward(run_, layers_[index], index, shared_, x);
  };
  const bool is_reentrant =
      run_.recomputes && checkpoints(index) && (job_.profile.reentrant_checkpoint || hosts_inputs_);
  if (is_reentrant && holder_.is_within_checkpoints()) {
    return reentrant(index, input, [this, group, run](const Tensor& x) {
      return holder_.leave(group, run(holder_.enter(group, x)));
    });
  }
  Tensor output;
  {
    const Tensor entered = holder_.enter(group, input);
    output = is_reentrant         ? reentrant(index, entered, run)
             : checkpoints(index) ? eager::checkpoint(graph_, entered, run)
                                  : run(entered);
  }
  return holder_.leave(group, output);
}

// For the model's own checkpoints.
Tensor CausalLm::with_gradient(const Tensor& hidden) {
  const bool asks = run_.checkpoints_layer() && !hidden.requires_grad();
  // What accumulates its gradient holds a leaf.
  return asks ? graph_.make_leaf(hidden, [leaf = hidden.detached()](const Tensor&) {}) : hidden;
}

Tensor CausalLm::decoder(const Tensor& token_ids) {
  const InRow row(graph_.tape, kResidualRow);
  using enum ModuleGroup::Kind;
  Tensor hidden = embed(holder_.enter({kEmbedding}, token_ids));
  if (class_.embedding_scale == EmbeddingScale::kInModule) {
    hidden = eager::scale(graph_, hidden);
  }
  if (class_.has_learned_positions) {
    hidden = with_positions(hidden);
  }
  if (!job_.model.tied_embeddings) {
    hidden = holder_.leave({kEmbedding}, hidden);
  }
  if (asks_for_inputs()) {
    hidden = with_gradient(hidden);
  }
  if (class_.embedding_scale == EmbeddingScale::kBehindModule) {
    hidden = eager::scale(graph_, hidden);
  }
  hidden = eager::dropout(graph_, hidden, class_.embedding_dropout);
  if (has_per_layer_inputs()) {
    per_layer_inputs_ = per_layer_inputs(
        graph_, per_layer_, job_.model.per_layer_embedding, job_.model.num_layers(), token_ids,
        hidden, [&](Norm& norm, const Tensor& x) { return apply_norm(run_, norm, x); });
  }
  call_rotary();
  shared_ = shared_by_layers(graph_, job_, run_.attention_sizes(),
                             {.table = table_.data.dtype, .norms = ends_});
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    hidden = layer_output(i, checkpoints(i) ? with_gradient(hidden) : hidden);
  }
  hidden = apply_norm(run_, final_norm_, holder_.enter({kFinalNorm}, hidden));
  if (!run_.recomputes) {
    drop_shared();
  }
  return hidden;
}

Tensor CausalLm::all_logits(const Tensor& hidden) {
  Tensor logits = head_product(hidden);
  logits = holder_.leave({ModuleGroup::Kind::kHead}, logits);
  if (class_.widens_logits) {
    logits = eager::to(graph_, logits, DType::kFp32);
  }
  if (class_.scales_logits) {
    logits = eager::scale(graph_, logits);
  }
  if (job_.model.caps_logits) {
    logits = eager::soft_capped(graph_, std::move(logits));
  }
  return logits;
}

// ForCausalLMLoss: logits in fp32, labels shifted by padding. Logits are returned with the loss.
Tensor CausalLm::stock_loss(const Tensor& hidden, const Tensor& labels, Tensor& logits) {
  logits = all_logits(hidden);
  const Tensor wide = eager::to(graph_, logits, DType::kFp32);
  const bool come_shifted = sizes_.rings && !run_.gathers_heads();
  Tensor shifted = come_shifted ? labels : Tensor{};
  if (!come_shifted) {
    const InRow row(graph_.tape, kTokensRow);
    const Tensor padded = graph_.make(labels.elements, DType::kInt64);
    shifted = graph_.make(labels.elements, DType::kInt64);
  }
  const bool has_liger_loss = job_.profile.head_loss == HeadLoss::kTwice && run_.uses_liger();
  return eager::scale(graph_, has_liger_loss ? liger_cross_entropy(graph_, wide, false)
                                             : eager::cross_entropy(graph_, wide, shifted));
}

HeadShape CausalLm::head_shape() const {
  return {.tokens = sizes_.tokens,
          .sequences = sizes_.tokens * sizes_.cp / sizes_.sequence,
          .hidden = sizes_.hidden,
          .vocab = sizes_.vocab,
          .has_last_tokens = sizes_.cp == 1,
          .scales_logits = class_.scales_logits,
          .caps_logits = job_.model.caps_logits};
}

Tensor CausalLm::loss(const Tensor& hidden, const Tensor& labels, Tensor& logits) {
  const InRow row(graph_.tape, kLogitsRow);
  const HeadShape shape = head_shape();
  const bool is_liger = job_.profile.head_loss == HeadLoss::kFusedLinear;
  if (is_liger && class_.liger == LigerUse::kNone) {
    return stock_loss(hidden, labels, logits);
  }
  read_head();
  switch (job_.profile.head_loss) {
    case HeadLoss::kStock:
    case HeadLoss::kTwice:
    case HeadLoss::kAnchored: return stock_loss(hidden, labels, logits);
    case HeadLoss::kPerToken:
    case HeadLoss::kByProbability:
    case HeadLoss::kByEntropy:
    case HeadLoss::kByEntropyOfRows: logits = all_logits(hidden); return {};
    case HeadLoss::kChunked: return chunked_loss(graph_, hidden, head().data, shape);
    case HeadLoss::kFusedLinear:
      return fused_linear_loss(graph_, hidden, head().data, shape,
                               job_.profile.liger_kernel == LigerKernel::kThrough082);
    case HeadLoss::kCutCrossEntropy: return cut_cross_entropy(graph_, hidden, head().data, shape);
  }
  return {};
}

Tensor CausalLm::loss_of_loop(const Tensor& logits, const Tensor& labels) {
  const InRow row(graph_.tape, kLogitsRow);
  switch (job_.profile.head_loss) {
    case HeadLoss::kTwice:
      return loss_again(graph_, logits, labels, head_shape(), run_.uses_liger());
    case HeadLoss::kByProbability: return loss_by_probability(graph_, logits, labels, head_shape());
    case HeadLoss::kByEntropy: return loss_by_entropy(graph_, logits, labels, head_shape());
    case HeadLoss::kByEntropyOfRows:
      return loss_by_entropy_of_rows(graph_, logits, labels, head_shape());
    default:
      return loss_per_token(graph_, logits, labels, head_shape(), job_.profile.loss_chunk_tokens);
  }
}

// LLaMA-Factory ff6d4d1 src/llamafactory/train/sft/trainer.py compute_loss: what the reference
// returns, with its keys and values, stays until the loss is there.
Tensor CausalLm::loss_beside_reference(const Tensor& logits, const Tensor& of_reference) {
  const InRow row(graph_.tape, kLogitsRow);
  Tensor loss = anchored_loss(graph_, logits, of_reference, head_shape());
  reference_->cache_.clear();
  return loss;
}

void CausalLm::drop_shared() {
  shared_ = {};
  shared_keys_ = {};
  per_layer_inputs_.clear();
}

void CausalLm::end_call(Tensor& returned) {
  if (graph_.autocast) {
    graph_.end_autocast();
  }
  const InRow row(graph_.tape, kLogitsRow);
  if (graph_.autocast && returned.is_defined()) {  // convert_outputs_to_fp32
    returned = eager::to(graph_, returned, DType::kFp32);
  }
  if (holder_.copies_outputs() && graph_.records && returned.is_defined()) {
    returned = eager::laid_out(graph_, returned);
  }
}

// A loss of the loop's own is taken of what the model returns, beside which the model's own loss
// stays until then.
Tensor CausalLm::forward() {
  const InRow tokens_row(graph_.tape, kTokensRow);
  graph_.tape.begin(MomentKind::kForward);
  // context_parallel leaves this rank's part in the front of tensors of all ranks, of which there
  // are three more: shifted labels, the attention mask and positions. axolotl's ring copies its
  // part of each, and shifts no labels.
  const bool copies = run_.gathers_heads();
  const std::int64_t given = sizes_.rings ? sizes_.tokens * sizes_.cp : sizes_.tokens;
  const Tensor of_all = graph_.make(copies ? 4 * given : 0, DType::kInt64);
  const std::int64_t own = copies ? sizes_.tokens : given;
  const Tensor token_ids = graph_.make(own, DType::kInt64).viewed(sizes_.tokens);
  const Tensor labels = graph_.make(own, DType::kInt64).viewed(sizes_.tokens);
  const std::int64_t num_others = copies ? 2 : sizes_.rings ? 3 : 0;
  const Tensor others = graph_.make(num_others * own, DType::kInt64);
  Tensor of_reference;
  if (is_anchored()) {
    const eager::NoGrad no_grad(graph_);
    of_reference = reference_logits(token_ids);
    graph_.tape.begin(MomentKind::kForward);
  }
  Tensor logits;
  Tensor own_loss;
  Tensor output = call_whole(token_ids, [&](const Tensor& ids) {
    const Tensor hidden = call_decoder(ids);
    graph_.tape.begin(MomentKind::kLossForward);
    Tensor sum = loss(hidden, labels, logits);
    if (job_.adapters.rank > 0 && job_.adapters.kind == AdapterKind::kAdaLora) {
      sum = with_orthogonal_factors(graph_, std::move(sum), trained_factors(), job_.adapters.rank);
    }
    if (!loop_takes_loss()) {
      return sum;
    }
    own_loss = std::move(sum);
    return std::exchange(logits, {});
  });
  output = holder_.leave_model(output);
  end_call(loop_takes_loss() ? output : logits);
  holder_.end_forward();
  if (is_anchored()) {
    return loss_beside_reference(output, of_reference);
  }
  return loop_takes_loss() ? loss_of_loop(output, labels) : output;
}

void CausalLm::train(bool syncs, std::optional<DType> autocast) {
  holder_.begin_microbatch(syncs);
  const eager::WithHooks hooks(graph_, host_tensors_);
  graph_.tape.enter_thread(false);
  graph_.autocast = autocast;
  const bool is_plain = job_.profile.objective == Objective::kNextToken;
  const Tensor loss = is_plain ? forward() : objective_forward();
  cache_.clear();
  graph_.end_autocast();
  graph_.autocast.reset();
  graph_.tape.begin(MomentKind::kLossBackward);
  graph_.tape.enter_thread(true);
  graph_.backward(loss, {});
  if (host_tensors_ != nullptr) {
    host_tensors_->clear();
  }
  graph_.tape.begin(MomentKind::kReduction);
  holder_.end_backward();
  graph_.drop_graph();
  drop_shared();
}

std::int64_t CausalLm::most_host_bytes() const {
  if (hosts_inputs_) {
    const std::int64_t layers = job_.model.num_layers();
    return layers * sizes_.tokens * sizes_.hidden * bytes_of(table_.data.dtype);
  }
  return host_tensors_ == nullptr ? 0 : host_tensors_->most_bytes();
}

}  // namespace shardplan::huggingface
