// Ends of the pipeline in the native trainer, and the table that puts its blocks together.
#include "estimator/block_rows_native.h"

namespace shardplan {

void add_native_embedding(NativeBlock& block) {
  const BlockShape& s = block.shape;
  block.rows.keep("token_ids", s.tokens, DType::kInt32,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardOutput,
                   .dies = Step::kBackwardInput},
                  "T: token ids");
  block.rows.use("output", block.sequence(), s.dtype, Step::kForwardOutput, Step::kForwardOutput,
                 "h*u");
  block.rows.use("output_gradient", block.sequence(), s.dtype, Step::kBackwardOutput,
                 Step::kBackwardInput, "h*u: added into the fp32 main gradient row by row");
  if (s.gathers_sequence) {
    const Component comm = Component::kCommunication;
    block.rows.use_as(comm, "partial_output", s.hidden * s.tokens, s.dtype, Step::kForwardOutput,
                      Step::kForwardOutput, "h*T: before the reduce-scatter");
    block.rows.use_as(comm, "gathered_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardInput,
                      Step::kBackwardInput, "h*T");
  }
}

// bf16 logits of one chunk of tokens, computed in forward for the statistics and again in backward,
// where the gradient is written over them.
void add_native_head(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t chunk = div_ceil(s.tokens, block.job.profile.cross_entropy_chunks);
  const Life life{.born = Step::kForwardLogits,
                  .last_forward_use = Step::kForwardLogits,
                  .dies = Step::kBackwardInput};
  rows.keep("final_norm.input", block.sequence(), s.dtype, life, "h*u");
  rows.keep("final_norm.statistics", s.sharded_tokens, DType::kFp32, life, "u: fp32");
  rows.keep("final_norm.output", block.sequence(), s.dtype,
            {.born = Step::kForwardLogits,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "h*u: input of the head product");
  rows.keep("loss.statistics", 3 * s.tokens, DType::kFp32,
            {.born = Step::kForwardLoss,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "3*T: maximum, sum and target logit, 12 bytes per token");
  rows.keep("labels", s.tokens, DType::kInt32,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "T");
  rows.use("loss.logits_chunk", chunk * s.local_vocab, s.dtype, Step::kForwardLogits,
           Step::kForwardLoss, "T/chunks*V/t");
  rows.use("loss.logits_chunk_again", chunk * s.local_vocab, s.dtype, Step::kBackwardLoss,
           Step::kBackwardLogits, "T/chunks*V/t: the gradient is written over the logits");
  rows.use("final_norm.output_gradient", block.sequence(), s.dtype, Step::kBackwardLoss,
           Step::kBackwardInput, "h*u");
  if (s.gathers_sequence) {
    const Component comm = Component::kCommunication;
    rows.use_as(comm, "head.gathered_input", s.hidden * s.tokens, s.dtype, Step::kForwardLogits,
                Step::kForwardLoss, "h*T");
    rows.use_as(comm, "head.gathered_input_again", s.hidden * s.tokens, s.dtype,
                Step::kBackwardLoss, Step::kBackwardLogits, "h*T");
    rows.use_as(comm, "head.partial_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardLoss,
                Step::kBackwardLogits, "h*T: before the reduce-scatter");
  }
}

void add_native_mtp_projection(NativeBlock& block) {
  block.rows.keep("mtp.projection_input", 2 * block.sequence(), block.shape.dtype,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardInput,
                   .dies = block.weight_step(Step::kBackwardInput)},
                  "2h*u: normed embedding and hidden state");
  block.rows.use("mtp.projection_input_gradient", 2 * block.sequence(), block.shape.dtype,
                 Step::kBackwardInput, Step::kBackwardInput, "2h*u");
}

std::vector<BlockRow> native_rows(const Job& job, const Plan& plan, BlockKind kind) {
  NativeBlock block{.job = job, .plan = plan, .shape = block_shape(job, plan)};
  switch (kind) {
    case BlockKind::kEmbedding: add_native_embedding(block); break;
    case BlockKind::kHead: add_native_head(block); break;
    case BlockKind::kSentOutput: break;
    case BlockKind::kMtp:
      add_native_attention(block);
      if (job.model.layers.back().is_moe) {
        add_native_moe(block);
      } else {
        add_native_dense_ffn(block);
      }
      add_native_mtp_projection(block);
      add_native_head(block);
      break;
    case BlockKind::kDenseLayer:
      add_native_attention(block);
      add_native_dense_ffn(block);
      break;
    case BlockKind::kMoeLayer:
      add_native_attention(block);
      add_native_moe(block);
      break;
  }
  return block.rows.rows;
}

}  // namespace shardplan
