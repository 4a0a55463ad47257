// Ends of the pipeline under Megatron-core's local spec: embedding, final norm, head and the
// unfused vocabulary-parallel loss.
#include "estimator/frameworks/megatron/blocks/local_ends.h"

#include <algorithm>

#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

// aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu and Embedding.cu: beyond 3072 tokens the
// gradient is summed in parts of ten tokens of one id; as many as there may be are allocated.
std::int64_t embedding_parts(const BlockShape& shape) {
  constexpr std::int64_t kSummedAtOnce = 3072;
  constexpr std::int64_t kTokensOfPart = 10;  // NROWS_PER_THREAD
  return shape.tokens <= kSummedAtOnce
             ? 0
             : shape.tokens / kTokensOfPart + std::min(shape.tokens, shape.local_vocab);
}

// core/tensor_parallel/cross_entropy.py (VocabParallelCrossEntropy): the logits are cast to fp32,
// which becomes the softmax and is saved; the bf16 logits live until the loss returns. Backward
// casts the gradient, written over the softmax, back to bf16.
void add_loss(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t logits = s.local_vocab * s.tokens;
  const Life saved{.born = Step::kForwardLoss,
                   .last_forward_use = Step::kForwardLoss,
                   .dies = Step::kBackwardLoss};
  rows.keep("labels", s.tokens, DType::kInt64,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLoss},
            "T: labels");
  rows.use("logits", logits, s.dtype, Step::kForwardLogits, Step::kForwardLoss,
           "V*T/t: output of the head product");
  rows.keep("loss.fp32", logits, DType::kFp32, saved,
            "V*T/t: fp32 copy of the logits, becomes the softmax, saved");
  rows.keep("loss.target_mask", s.tokens, DType::kBool, saved,
            "T: labels outside this rank's part");
  rows.keep("loss.masked_target", s.tokens, DType::kInt64, saved,
            "T: labels within this rank's part of the vocabulary");
  rows.use("loss.positions", s.tokens, DType::kInt64, Step::kForwardLoss, Step::kForwardLoss,
           "T: row numbers for indexing");
  rows.use("loss.statistics", 3 * s.tokens, DType::kFp32, Step::kForwardLoss, Step::kForwardLoss,
           "3*T: maximum, logit of the label, sum of exponentials");
  rows.use("loss.gradient", s.tokens, DType::kFp32, Step::kBackwardLoss, Step::kBackwardLoss, "T");
  rows.use("loss.logits_gradient", logits, s.dtype, Step::kBackwardLoss, Step::kBackwardLogits,
           "V*T/t: gradient cast back to the logits' dtype");
}

}  // namespace

void add_local_embedding_forward(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const Life saved{.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardOutput,
                   .dies = Step::kBackwardInput};
  const bool is_split = block.plan.tp > 1;
  rows.keep("token_ids", s.tokens, DType::kInt64, saved, "T: token ids");
  rows.keep("masked_token_ids", is_split ? s.tokens : 0, DType::kInt64, saved,
            "T: ids within this rank's part of the vocabulary");
  rows.keep("token_mask", is_split ? s.tokens : 0, DType::kBool, saved,
            "T: ids outside this rank's part");
  const bool transposes = block.plan.micro_batch > 1;
  const std::int64_t full = s.hidden * s.tokens;
  if (s.gathers_sequence) {
    rows.use("full_output", (transposes ? 2 : 1) * full, s.dtype, Step::kForwardOutputGather,
             Step::kForwardOutputGather, "h*T: partial sums, and beyond one sequence a copy");
    if (transposes) {
      rows.pass_last({{full, 1}, {full, 1}});
    }
    rows.use("scattered_output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardOutputGather,
             Step::kForwardOutput, "h*u: after the reduce-scatter");
  } else {
    rows.use("full_output", transposes ? full : 0, s.dtype, Step::kForwardOutput,
             Step::kForwardOutput, "h*T: before the transposition");
  }
  rows.use("output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardOutput,
           Step::kForwardOutput, "h*u: becomes the input of the first layer")
      .is_handed_on = true;
}

void add_local_embedding_backward(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t full = s.hidden * s.tokens;
  rows.use("output_gradient", s.hidden * s.sharded_tokens, s.dtype, Step::kBackwardOutput,
           s.gathers_sequence ? Step::kBackwardOutput : Step::kBackwardInput, "h*u")
      .is_taken_over = true;
  if (s.gathers_sequence) {
    rows.use("full_output_gradient", full, s.dtype, Step::kBackwardOutput, Step::kBackwardNorm,
             "h*T: gathered");
  }
  if (block.plan.tp > 1) {
    rows.use("masked_output_gradient", full, s.dtype, Step::kBackwardNorm, Step::kBackwardInput,
             "h*T: copy in which the rows of other ranks' tokens are zero");
  }
  rows.use("contiguous_output_gradient", block.plan.micro_batch > 1 ? full : 0, s.dtype,
           Step::kBackwardInput, Step::kBackwardInput,
           "h*T: beyond one sequence the gradient arrives transposed");
  rows.use("weight_gradient", s.local_vocab * s.hidden, s.dtype, Step::kBackwardInput,
           Step::kBackwardInput,
           "h*V/t: torch's embedding backward makes a dense gradient in the weight's dtype");
  rows.use("weight_gradient_parts", embedding_parts(s) * s.hidden, DType::kFp32,
           Step::kBackwardInput, Step::kBackwardInput,
           "h*(T/10 + min(T, V/t)): partial sums by token id, at most ten tokens each");
}

void add_local_head(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  const Life saved{.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardLogits,
                   .dies = Step::kBackwardInput};
  rows.keep("final_norm.input", sequence, s.dtype, saved,
            "h*u: output of the last layer, saved by the final norm")
      .is_taken_over = true;
  rows.keep("final_norm.statistics", s.sharded_tokens, DType::kFp32, saved, "u: fp32");
  rows.keep("final_norm.output", sequence, s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLogits,
             .dies = Step::kBackwardLogits},
            "h*u: input of the head product");
  add_loss(block);
  if (s.gathers_sequence) {
    rows.use("full_input_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardLogits,
             Step::kBackwardLogits, "h*T: input gradient before its reduce-scatter")
        .is_first_product = true;
  }
  rows.use("final_norm.output_gradient", sequence, s.dtype, Step::kBackwardLogits,
           Step::kBackwardInput, "h*u")
      .is_first_product = true;
  rows.use("final_norm.input_gradient", sequence, s.dtype, Step::kBackwardInput,
           Step::kBackwardInput, "h*u")
      .is_handed_on = true;
  add_weight_gradient(block, "head.weight_gradient", s.local_vocab * s.hidden,
                      Step::kBackwardLogits);
}

}  // namespace shardplan::megatron
