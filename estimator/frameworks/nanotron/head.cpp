#include "estimator/frameworks/nanotron/head.h"

#include "estimator/frameworks/nanotron/block.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan::nanotron {
namespace {

void add_final_norm(NanotronBlock& b) {
  b.rows.keep("final_norm.input", b.sequence(), b.s.dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLogits,
               .dies = Step::kBackwardInput},
              "h*u: saved by the norm");
  add_norm(b, {.statistics = "final_norm.statistics",
               .output = "final_norm.output",
               .local_output = "final_norm.local_output",
               .norm = Step::kForwardInput,
               .product = Step::kForwardLogits,
               .last_local = Step::kForwardLogits,
               .backward = Step::kBackwardLogits});
}

void add_logits_backward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  keep_weight_gradient(b.rows, "weight_gradient", s.local_vocab * s.hidden, s.dtype,
                       Step::kBackwardLogits)
      .is_first_product = true;
  b.rows.use("full_input_gradient", s.gathers_sequence ? b.full_sequence() : 0, s.dtype,
             Step::kBackwardLogits, Step::kBackwardLogits, "h*T: before its reduce-scatter");
  b.rows.use("final_norm.output_gradient", b.sequence(), s.dtype, Step::kBackwardLogits,
             Step::kBackwardInput, "h*u");
  b.rows.use("final_norm.input_gradient", b.sequence(), s.dtype, Step::kBackwardInput,
             Step::kBackwardInput, "h*u");
}

// The loss subtracts the maximum from the fp32 logits into a second fp32 tensor, turns it into the
// softmax in place and saves it; backward turns it into the gradient in place.
void add_softmax(NanotronBlock& b, Step gradient_dies) {
  b.rows.keep(
      "loss.softmax", b.s.local_vocab * b.s.tokens, DType::kFp32,
      {.born = Step::kForwardLoss, .last_forward_use = Step::kForwardLoss, .dies = gradient_dies},
      "V*T/t: logits less their maximum, becomes the softmax and then the gradient");
}

// There since `cast`.
void add_cast_logits(NanotronBlock& b, Step cast) {
  b.rows.use("logits_fp32", b.s.local_vocab * b.s.tokens, DType::kFp32, cast, Step::kForwardLoss,
             "V*T/t: held by the model's forward until the loss is there");
}

void add_labels(NanotronBlock& b) {
  b.rows.keep("labels", 2 * b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "2*T: labels and their mask");
}

// The same on several ranks (models/base.py, build_model): logits are sent from one to the next,
// their gradients back. What a rank has received lives until its backward pass (seen in traces).
// What it sends waits, under 1F1B, for the next backward pass, which sends before it asks for the
// gradient (parallel/pipeline_parallel/state.py, run_communication).
void add_received(NanotronBlock& b, DType dtype) {
  b.rows.keep("received_logits", b.s.local_vocab * b.s.tokens, dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardInput},
              "V*T/t");
}

void add_unsent(NanotronBlock& b, DType dtype) {
  const bool waits = b.plan.schedule == Schedule::k1F1B;
  b.rows.use("unsent_logits", waits ? b.s.local_vocab * b.s.tokens : 0, dtype,
             Step::kBackwardOutput, Step::kBackwardOutput, "V*T/t: of the last forward pass");
}

// The loss is on the same stage where that is the last one.
bool casts_on_last_stage(const NanotronBlock& b) {
  return head_stage(b.job, b.plan) + 2 == b.plan.pp;
}

}  // namespace

void add_head(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_final_norm(b);
  b.rows
      .use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardLogits,
           "V*T/t: freed when the cast has returned")
      .is_first_product = true;
  add_cast_logits(b, Step::kForwardLogits);
  add_softmax(b, Step::kBackwardLoss);
  b.rows.use("loss.logits_gradient", logits, b.s.dtype, Step::kBackwardLoss, Step::kBackwardLogits,
             "V*T/t: cast back");
  add_labels(b);
  add_logits_backward(b);
}

void add_logits(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_final_norm(b);
  b.rows.use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardOutput, "V*T/t: sent")
      .is_first_product = true;
  add_unsent(b, b.s.dtype);
  b.rows.use("logits_gradient", logits, b.s.dtype, Step::kBackwardOutput, Step::kBackwardLogits,
             "V*T/t: received");
  add_logits_backward(b);
}

void add_cast(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_received(b, b.s.dtype);
  b.rows.use("logits_fp32", logits, DType::kFp32, Step::kForwardOutput, Step::kForwardOutput,
             "V*T/t");
  if (!casts_on_last_stage(b)) {
    add_unsent(b, DType::kFp32);
  }
  b.rows.use("logits_fp32_gradient", logits, DType::kFp32, Step::kBackwardOutput,
             Step::kBackwardInput, "V*T/t");
  b.rows
      .use("logits_gradient", logits, b.s.dtype, Step::kBackwardInput, Step::kBackwardInput,
           "V*T/t: cast back, sent")
      .is_freed_in_use = true;
}

void add_loss(NanotronBlock& b) {
  if (casts_on_last_stage(b)) {
    add_cast_logits(b, Step::kForwardInput);
  } else {
    add_received(b, DType::kFp32);
  }
  add_softmax(b, Step::kBackwardInput);
  add_labels(b);
}

}  // namespace shardplan::nanotron
