// A layer of labels behind the model in place of its head, or a value head beside it, and losses of
// what it returns.
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

// TRL 0.24.0 models/modeling_value_head.py: logits are made and become fp32 beside the values.
Tensor CausalLm::value_head(const Tensor& hidden) {
  constexpr double kDropout = 0.1;  // summary_dropout_prob
  const Tensor logits = all_logits(hidden);
  const Tensor dropped = eager::dropout(graph_, hidden, kDropout);
  const Tensor wide = eager::to(graph_, dropped, label_head_.weight.data.dtype);
  Tensor values = unadapted_product(graph_, label_head_, wide);
  const Tensor wide_logits = eager::to(graph_, logits, DType::kFp32);
  return values;
}

// transformers 5.17 modeling_layers.py GenericForSequenceClassification, which picks the last token
// of each text, and GenericForTokenClassification, whose dropout the trainer turns off, with
// loss/loss_utils.py ForTokenClassification.
Tensor CausalLm::scores(const Tensor& token_ids, const Tensor& labels) {
  const std::int64_t sequences = head_shape().sequences;
  graph_.tape.begin(MomentKind::kForward);
  Tensor output = call_whole(token_ids, [&](const Tensor& ids) {
    const Tensor hidden = call_decoder(ids);
    graph_.tape.begin(MomentKind::kLossForward);
    const InRow row(graph_.tape, kLogitsRow);
    if (is_of_factory()) {
      return value_head(hidden);
    }
    const eager::Module module = {&label_head_, "score", {&label_head_.weight, &label_head_.bias}};
    const Tensor logits = eager::call_module(graph_, module, hidden, [&](const Tensor& x) {
      return unadapted_product(graph_, label_head_, x);
    });
    if (job_.profile.objective == Objective::kReward) {
      return eager::index(graph_, logits, sequences * job_.profile.num_labels);
    }
    return eager::cross_entropy(graph_, eager::to(graph_, logits, DType::kFp32), labels);
  });
  output = holder_.leave_model(output);
  end_call(output);
  holder_.end_forward();
  return output;
}

// Of pairs the loss is of two values each; the value head's are of all tokens.
Tensor CausalLm::objective_forward() {
  const InRow tokens_row(graph_.tape, kTokensRow);
  graph_.tape.begin(MomentKind::kForward);
  const Tensor token_ids = graph_.make(sizes_.tokens, DType::kInt64);
  const Tensor attention_mask = graph_.make(sizes_.tokens, DType::kInt64);
  const Tensor labels = graph_.make(sizes_.tokens, DType::kInt64);
  using enum Objective;
  const Objective objective = job_.profile.objective;
  if (ends_in_labels(objective)) {
    const Tensor values = scores(token_ids, labels);
    return objective == kReward ? eager::mean(graph_, eager::silu(graph_, values), values.elements)
                                : values;
  }
  if (objective == kKto) {
    const Tensor mismatched = graph_.make(sizes_.tokens, DType::kInt64);
    const Tensor mask = graph_.make(sizes_.tokens, DType::kInt64);
    const Tensor mismatched_labels = graph_.make(sizes_.tokens, DType::kInt64);
    return kto_loss(token_ids, mismatched);
  }
  return objective == kDpo ? dpo_loss(token_ids) : odds_loss(token_ids);
}

}  // namespace shardplan::huggingface
