// Losses that compare log-probabilities of texts, with those of a reference model or with each
// other, in the order of their trainers.
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/objectives/log_probabilities.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

Tensor CausalLm::logits_of(const Tensor& token_ids) {
  graph_.tape.begin(MomentKind::kForward);
  Tensor logits = call_whole(token_ids, [&](const Tensor& ids) {
    const Tensor hidden = call_decoder(ids);
    graph_.tape.begin(MomentKind::kLossForward);
    const InRow row(graph_.tape, kLogitsRow);
    return all_logits(hidden);
  });
  logits = holder_.leave_model(logits);
  end_call(logits);
  holder_.end_forward();
  return logits;
}

// Layers are not recomputed, and what those of a forward pass with a graph share stays for their
// backward pass (TRL 1.8.0 models/utils.py disable_gradient_checkpointing).
Tensor CausalLm::logits_without_graph(const Tensor& token_ids) {
  const eager::NoGrad no_grad(graph_);
  const bool recomputes = std::exchange(run_.recomputes, false);
  SharedByLayer shared = std::exchange(shared_, {});
  Tensor logits = logits_of(token_ids);
  shared_ = std::move(shared);
  run_.recomputes = recomputes;
  return logits;
}

// Whoever hooks into calls of the trained model's modules does not into another model's.
Tensor CausalLm::reference_logits(const Tensor& token_ids) {
  if (reference_ != nullptr) {
    eager::ModuleHooks* const hooks = std::exchange(graph_.modules, nullptr);
    Tensor logits = reference_->logits_without_graph(token_ids);
    graph_.modules = hooks;
    return logits;
  }
  adapters_are_off_ = true;
  Tensor logits = logits_without_graph(token_ids);
  adapters_are_off_ = false;
  return logits;
}

Tensor CausalLm::log_probabilities_of(const Tensor& logits, const Tensor& token_ids) {
  const InRow row(graph_.tape, kLogitsRow);
  const HeadShape shape = head_shape();
  if (is_of_swift()) {  // labels are rolled, so that every row has one
    const Tensor labels = graph_.make(shape.tokens, DType::kInt64);
    return log_probabilities(graph_, logits, labels, shape);
  }
  const Tensor rows = without_last(graph_, logits, shape);
  return is_of_factory() ? log_probabilities_at_once(graph_, rows, token_ids, shape)
                         : log_probabilities(graph_, rows, token_ids, shape);
}

// TRL 1.8.0 trainer/dpo_trainer.py _compute_loss: what the reference returns stays until both
// entropy and means are logged. LLaMA-Factory ff6d4d1 src/llamafactory/train/dpo/trainer.py
// concatenated_forward: the logits stay for their mean, the reference's as long as it runs.
Tensor CausalLm::dpo_loss(const Tensor& token_ids) {
  if (is_of_swift()) {
    return loss_of_swift(token_ids, {});
  }
  const HeadShape shape = head_shape();
  const Tensor logits = logits_of(token_ids);
  const Tensor of_policy = log_probabilities_of(logits, token_ids);
  Tensor of_reference;
  Tensor reference;
  if (compares()) {
    const eager::NoGrad no_grad(graph_);
    reference = reference_logits(token_ids);
    of_reference = log_probabilities_of(reference, token_ids);
  }
  if (is_of_factory()) {
    reference = {};
  }
  const InRow row(graph_.tape, kLogitsRow);
  Tensor loss = compared(graph_, of_policy, of_reference, shape);
  if (!is_of_factory()) {
    log_logits(logits);
    log_means_of_halves(graph_, logits);
  }
  return loss;
}

void CausalLm::log_logits(const Tensor& logits) {
  const HeadShape shape = head_shape();
  const std::int64_t rows = (shape.tokens - shape.sequences) * shape.vocab;
  log_entropy_of_rows(graph_, logits.detached().viewed(rows), shape);
}

// TRL 1.8.0 experimental/orpo/orpo_trainer.py and cpo/cpo_trainer.py concatenated_forward: the loss
// of the chosen, then log-probabilities of all. LLaMA-Factory's is its DPO's without a reference.
Tensor CausalLm::odds_loss(const Tensor& token_ids) {
  if (is_of_factory()) {
    return dpo_loss(token_ids);
  }
  const HeadShape shape = head_shape();
  const Tensor logits = logits_of(token_ids);
  const InRow row(graph_.tape, kLogitsRow);
  const Tensor of_chosen = chosen_cross_entropy(graph_, logits, token_ids, shape);
  const Tensor rows = without_last(graph_, logits, shape);
  const Tensor of_all = log_probabilities(graph_, rows, token_ids, shape);
  return eager::add(graph_, of_chosen, compared(graph_, of_all, {}, shape));
}

// Of texts and answers that do not belong together: the logits go when their log-probabilities are
// there (TRL 1.8.0 trainer/kto_trainer.py _compute_kl_logps; LLaMA-Factory ff6d4d1
// src/llamafactory/train/kto/trainer.py forward).
void CausalLm::call_mismatched(const Tensor& logits, const Tensor& token_ids) {
  const eager::NoGrad no_grad(graph_);
  const Tensor found = log_probabilities_of(logits, token_ids);
}

namespace {

// Copies of the logits of good and of bad texts, which are taken to be as many.
eager::Tensors by_label(eager::Graph& graph, const Tensor& logits, std::int64_t sequences) {
  const InRow row(graph.tape, kLogitsRow);
  const std::int64_t good = logits.elements / sequences * (sequences / 2);
  eager::Tensors copies = {graph.make(good, logits.dtype)};
  copies.push_back(graph.make(logits.elements - good, logits.dtype));
  return copies;
}

}  // namespace

// TRL 1.8.0 trainer/kto_trainer.py _compute_loss: copies of the logits of good and of bad texts
// stay, as what the reference returns does.
Tensor CausalLm::kto_loss(const Tensor& token_ids, const Tensor& mismatched) {
  if (is_of_factory()) {
    return kto_loss_of_factory(token_ids, mismatched);
  }
  if (is_of_swift()) {
    return loss_of_swift(token_ids, mismatched);
  }
  call_mismatched(logits_without_graph(mismatched), mismatched);
  const Tensor logits = logits_of(token_ids);
  const Tensor of_policy = log_probabilities_of(logits, token_ids);
  const InRow row(graph_.tape, kLogitsRow);
  const eager::Tensors selected = by_label(graph_, logits, head_shape().sequences);
  Tensor of_reference;
  Tensor reference;
  if (compares()) {
    const eager::NoGrad no_grad(graph_);
    call_mismatched(reference_logits(mismatched), mismatched);
    reference = reference_logits(token_ids);
    of_reference = log_probabilities_of(reference, token_ids);
  }
  Tensor loss = compared(graph_, of_policy, of_reference, head_shape());
  log_logits(logits);
  return loss;
}

// LLaMA-Factory ff6d4d1 src/llamafactory/train/kto/trainer.py concatenated_forward: of either model
// the texts first, then what does not belong together, then copies of the logits of good and of bad
// texts; those of the trained model stay.
Tensor CausalLm::kto_loss_of_factory(const Tensor& token_ids, const Tensor& mismatched) {
  const std::int64_t sequences = head_shape().sequences;
  Tensor of_policy;
  eager::Tensors copies;
  {
    const Tensor logits = logits_of(token_ids);
    of_policy = log_probabilities_of(logits, token_ids);
    call_mismatched(logits_without_graph(mismatched), mismatched);
    copies = by_label(graph_, logits, sequences);
  }
  Tensor of_reference;
  {
    const eager::NoGrad no_grad(graph_);
    const Tensor logits = reference_logits(token_ids);
    of_reference = log_probabilities_of(logits, token_ids);
    call_mismatched(reference_logits(mismatched), mismatched);
    const eager::Tensors of_logits = by_label(graph_, logits, sequences);
  }
  const InRow row(graph_.tape, kLogitsRow);
  return compared(graph_, of_policy, of_reference, head_shape());
}

// ms-swift 3602360 swift/rlhf_trainers/dpo_trainer.py concatenated_forward, kto_trainer.py forward:
// of either model what does not belong together first, if there is such, then the texts. Logits go
// when their log-probabilities are there: means of them are sums by row.
Tensor CausalLm::loss_of_swift(const Tensor& token_ids, const Tensor& mismatched) {
  if (mismatched.is_defined()) {
    call_mismatched(logits_without_graph(mismatched), mismatched);
  }
  const Tensor of_policy = log_probabilities_of(logits_of(token_ids), token_ids);
  Tensor of_reference;
  if (compares()) {
    const eager::NoGrad no_grad(graph_);
    if (mismatched.is_defined()) {
      call_mismatched(reference_logits(mismatched), mismatched);
    }
    of_reference = log_probabilities_of(reference_logits(token_ids), token_ids);
  }
  const InRow row(graph_.tape, kLogitsRow);
  return compared(graph_, of_policy, of_reference, head_shape());
}

}  // namespace shardplan::huggingface
