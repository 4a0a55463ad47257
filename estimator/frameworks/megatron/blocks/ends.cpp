// Ends of the pipeline under Megatron: embedding, multi-token-prediction projection, final norm,
// head and loss. Letters in block_rows.h.
#include "estimator/frameworks/megatron/blocks/ends.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/fsdp.h"

namespace shardplan::megatron {
namespace {

struct LossRows {
  Step logits_die = Step::kForwardLoss;  // bf16 logits
  std::int64_t fp32_kept = 0;            // fp32 values per logit saved for backward
  std::int64_t fp32_used = 0;            // fp32 values per logit beside them, in forward
  std::int64_t cast_back = 0;            // bf16 gradient beside the fp32 one
  std::string_view formula;
};

// Megatron-LM core/tensor_parallel/cross_entropy.py, core/fusions/fused_cross_entropy.py;
// Transformer Engine pytorch/triton/cross_entropy.py.
LossRows loss_rows(CrossEntropyKind kind) {
  switch (kind) {
    case CrossEntropyKind::kTeFused:
      return {.logits_die = Step::kBackwardLogits,
              .fp32_kept = 0,
              .cast_back = 0,
              .formula = "V*T/t: bf16 logits; the fused loss writes the gradient over them"};
    case CrossEntropyKind::kTeFusedSeparateGrad:
      return {.logits_die = Step::kForwardLoss,
              .fp32_kept = 1,
              .cast_back = 1,
              .formula = "V*T/t: gradient in fp32, written by the forward kernel"};
    // Its pieces are compiled one by one, so the exponentials are not written over the logits.
    case CrossEntropyKind::kNativeFused:
      return {.logits_die = Step::kForwardLoss,
              .fp32_kept = 1,
              .fp32_used = 1,
              .cast_back = 1,
              .formula = "V*T/t: fp32 exponentials, become the softmax, saved"};
    case CrossEntropyKind::kUnfused:
      return {.logits_die = Step::kForwardLoss,
              .fp32_kept = 1,
              .cast_back = 1,
              .formula = "V*T/t: fp32 copy of the logits, becomes the softmax, saved"};
    case CrossEntropyKind::kChunked: break;
  }
  throw std::logic_error("loss_rows: a loss that Megatron does not have");
}

void add_loss(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t logits = s.local_vocab * s.tokens;
  const double override_bytes = block.job.profile.cross_entropy_bytes_per_logit;
  if (override_bytes > 0) {
    rows.use("logits", div_ceil(scaled(logits, override_bytes), bytes_of(s.dtype)), s.dtype,
             Step::kForwardLogits, Step::kBackwardLogits,
             "V*T/t x cross_entropy_bytes_per_logit of the profile");
    return;
  }
  const LossRows loss = loss_rows(block.job.profile.cross_entropy);
  rows.keep("logits", logits, s.dtype,
            {.born = Step::kForwardLogits,
             .last_forward_use = Step::kForwardLoss,
             .dies = loss.logits_die},
            "V*T/t: output of the head product");
  rows.keep("loss.fp32", loss.fp32_kept * logits, DType::kFp32,
            {.born = Step::kForwardLoss,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLoss},
            loss.formula);
  rows.use("loss.fp32_logits", loss.fp32_used * logits, DType::kFp32, Step::kForwardLoss,
           Step::kForwardLoss, "V*T/t: fp32 copy of the logits");
  rows.use("loss.logits_gradient", loss.cast_back * logits, s.dtype, Step::kBackwardLoss,
           Step::kBackwardLogits, "V*T/t: gradient cast back to the logits' dtype");
  rows.use("loss.statistics", (3 + 3 * block.plan.tp) * s.tokens, DType::kFp32, Step::kForwardLoss,
           Step::kForwardLoss, "3*(1+t)*T: maximum, sum and target logit of every rank");
}

// Megatron-FSDP copies it into a bucket that it allocates behind the product.
Step head_gradient_dies(const MegatronBlock& block) {
  return holds_tied_gradient(block.job, block.plan) ? Step::kBackwardInput
         : is_megatron_fsdp(block.job, block.plan)  ? Step::kBackwardNorm
                                                    : Step::kBackwardLogits;
}

bool trains_head(const MegatronBlock& block) {
  return trains_linears(block) || block.job.adapters.trains_head;
}

// A frozen output layer saves nothing but its weight, and gathers its input into a tensor of its
// own (core/tensor_parallel/layers.py, linear_with_frozen_weight).
void add_head_input(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const bool is_frozen = !trains_head(block);
  keep_where_saved(block, !is_frozen, "final_norm.output", s.hidden * s.sharded_tokens, s.dtype,
                   {.born = Step::kForwardInput,
                    .last_forward_use = Step::kForwardLogits,
                    .dies = Step::kBackwardLogits},
                   "h*u: input of the head product, whose weight gradient is not delayed");
  block.rows.use("head.gathered_input", is_frozen && s.gathers_sequence ? s.hidden * s.tokens : 0,
                 s.dtype, Step::kForwardLogits, Step::kForwardLogits,
                 "h*T: gathered for the frozen head");
}

void add_head_gradient(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  if (!trains_head(block)) {
    return;
  }
  if (fuses_weight_gradients(block.job, block.plan)) {
    add_weight_gradient(block, "head.weight_gradient", s.local_vocab * s.hidden,
                        Step::kBackwardLogits);
    return;
  }
  block.rows
      .use("head.weight_gradient", s.local_vocab * s.hidden, s.dtype, Step::kBackwardLogits,
           head_gradient_dies(block), "h*V/t: before it is added to the main gradient")
      .is_freed_in_use = accumulates_beside(block.job, block.plan);
}

// A frozen embedding has no backward: what it gives is a leaf that asks for a gradient
// (mcore-bridge f020e47 src/mcore_bridge/model/gpt_model.py, _preprocess).
void add_embedding_backward(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  if (!trains_linears(block) && !block.job.adapters.trains_table) {
    return;
  }
  if (s.gathers_sequence) {
    block.rows.use("full_output_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardInput,
                   Step::kBackwardInput, "h*T: gathered");
  }
  block.rows
      .use("weight_gradient", s.local_vocab * s.hidden, s.dtype, Step::kBackwardInput,
           Step::kBackwardInput,
           "h*V/t: torch's embedding backward makes a dense gradient in the weight's dtype")
      .is_freed_in_use = accumulates_beside(block.job, block.plan);
}

}  // namespace

void add_embedding(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  rows.keep("token_ids", 2 * s.tokens, DType::kInt64,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardInput},
            "2*T: token and position ids");
  rows.keep("hidden_dropout_mask", drops_hidden(block) ? s.hidden * s.sharded_tokens : 0,
            DType::kBool,
            {.born = Step::kForwardOutput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardOutput},
            "h*u: saved by the dropout of the embedding");
  rows.use("output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardOutput,
           Step::kForwardOutput, "h*u: becomes the input of the first layer");
  rows.use("output_gradient", s.hidden * s.sharded_tokens, s.dtype, Step::kBackwardOutput,
           Step::kBackwardInput, "h*u");
  if (s.gathers_sequence) {
    rows.use("full_output", s.hidden * s.tokens, s.dtype, Step::kForwardOutput,
             Step::kForwardOutput, "h*T: before the reduce-scatter");
  }
  add_embedding_backward(block);
}

void add_mtp_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const Life saved{.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardInput,
                   .dies = Step::kBackwardInput};
  rows.keep("mtp.norm_inputs", 2 * s.hidden * s.sharded_tokens, s.dtype, saved,
            "2h*u: embedding and hidden state, inputs of their norms");
  keep_where_saved(block, saves_input(block, adapts_prediction(block.job)), "mtp.projection_input",
                   2 * s.hidden * s.sharded_tokens, s.dtype,
                   {.born = saved.born,
                    .last_forward_use = saved.last_forward_use,
                    .dies = block.weight_step(Step::kBackwardInput)},
                   "2h*u: concatenated norm outputs");
  rows.use("mtp.projection_input_gradient", 2 * s.hidden * s.sharded_tokens, s.dtype,
           Step::kBackwardInput, Step::kBackwardInput, "2h*u");
  add_adapter(block, AdapterPlace::kPrediction);
}

void add_head(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  rows.keep("final_norm.input", sequence, s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLogits,
             .dies = Step::kBackwardInput},
            "h*u: output of the last layer, saved by the final norm");
  rows.keep("final_norm.statistics", norm_statistics(block), DType::kFp32,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardInput,
             .dies = Step::kBackwardInput},
            "u: fp32");
  add_head_input(block);
  add_loss(block);
  rows.keep("labels", 2 * s.tokens, DType::kInt64,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLoss},
            "2*T: labels and loss mask");
  if (s.gathers_sequence) {
    rows.use("full_input_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardLogits,
             Step::kBackwardLogits, "h*T: input gradient before its reduce-scatter");
  }
  rows.use("final_norm.output_gradient", sequence, s.dtype, Step::kBackwardLogits,
           Step::kBackwardInput, "h*u");
  rows.use("final_norm.input_gradient", sequence, s.dtype, Step::kBackwardInput,
           Step::kBackwardInput, "h*u");
  add_head_gradient(block);
}

}  // namespace shardplan::megatron
