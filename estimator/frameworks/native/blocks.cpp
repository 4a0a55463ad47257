// Ends of the pipeline in the native trainer, and the table that puts its blocks together.
#include <utility>

#include "estimator/frameworks/native/attention.h"
#include "estimator/frameworks/native/blocks.h"
#include "estimator/frameworks/native/ffn.h"
#include "estimator/frameworks/native/moe.h"
#include "estimator/frameworks/pieces/seen_by_layer.h"

namespace shardplan::native {

namespace {

// Of the embedding's output; its weight gradient is the last thing that reads it.
void add_embedding_gradient(NativeBlock& block, Step own) {
  if (!block.shape.delayed_weight) {
    add_output_gradient(block, own);
    return;
  }
  block.rows.use("output_gradient", block.sequence(), block.shape.dtype, Step::kBackwardOutput,
                 block.shape.gathers_sequence ? Step::kWeightFc2Gather : Step::kWeightFc2,
                 "h*u: until the weight gradient");
}

void add_native_embedding(NativeBlock& block) {
  const BlockShape& s = block.shape;
  if (!s.gathers_sequence) {
    block.rows
        .keep("input", block.sequence(), s.dtype, {.dies = Step::kForwardInput},
              "h*u: written where the first layer reads it")
        .place = Place::kShared;
    add_embedding_gradient(block, Step::kBackwardInput);
    return;
  }
  add_embedding_gradient(block, Step::kBackwardOutput);
}

// What a chunk without head sends on, and what it gets back: the next ones may arrive while these
// are used.
void add_native_sent_output(NativeBlock& block) {
  BlockRow& row = block.rows.use_as(Component::kCommunication, "output", block.sequence(),
                                    block.shape.dtype, Step::kForwardInput, Step::kForwardOutput,
                                    "h*u: of the last layer, on its way to the next stage");
  row.place = Place::kOutputBuffers;
  row.buffers = 2;
  BlockRow& gradient = add_output_gradient(block, Step::kBackwardInput);
  if (block.shape.delayed_weight) {
    gradient.place = Place::kShared;  // the last layer keeps it
  } else {
    gradient.buffers = 2;
  }
}

// bf16 logits of one chunk of tokens, over which their gradient is written, and statistics of it.
void add_native_loss(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t chunk = div_ceil(s.tokens, block.job.profile.cross_entropy_chunks);
  const bool is_one = chunk == s.tokens;
  const bool is_sharded = block.plan.tp > 1;
  const NativeBlock::Hold held{.pushed = Step::kForwardLogits,
                               .popped = Step::kForwardLastLossProducts};
  const Step combined = is_one ? Step::kForwardLoss : Step::kForwardLastLoss;
  const Step gathered = is_one ? Step::kForwardLossGather : Step::kForwardLossProducts;
  NativeBlock::hold(rows.use("loss.logits", chunk * s.local_vocab, s.dtype, Step::kForwardLogits,
                             Step::kForwardLastLossProducts, "T/chunks*V/t"),
                    held);
  NativeBlock::hold(rows.use("loss.statistics", 3 * chunk, DType::kFp32, Step::kForwardLoss,
                             is_one ? Step::kForwardLossGradient : Step::kForwardLastLossGradient,
                             "3*T/chunks: maximum, sum and target logit of each token, fp32"),
                    held);
  NativeBlock::hold(rows.use("loss.shard_statistics", 3 * chunk, DType::kFp32,
                             Step::kForwardLossStatistics, is_sharded ? gathered : combined,
                             "3*T/chunks: of this rank's part of the vocabulary"),
                    held);
  if (is_sharded) {
    NativeBlock::hold(rows.use_as(Component::kCommunication, "loss.gathered_statistics",
                                  3 * block.plan.tp * chunk, DType::kFp32, Step::kForwardLossGather,
                                  combined, "3*t*T/chunks"),
                      held);
  }
}

// The gradient is taken with the loss, back to the output of the last layer, which stays for
// backward.
void add_native_head(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool gathers = s.gathers_sequence;
  const bool is_one = div_ceil(s.tokens, block.job.profile.cross_entropy_chunks) == s.tokens;
  const Step product = is_one ? Step::kForwardLastLossProducts : Step::kForwardLossProducts;
  const Step end = Step::kForwardHeadReduce;  // of what the gradient of the norm does not need
  rows.use("final_norm.input", block.sequence(), s.dtype, Step::kForwardInput, Step::kForwardOutput,
           "h*u: output of the last layer");
  rows.use("final_norm.statistics", s.sharded_tokens, DType::kFp32, Step::kForwardNorm,
           Step::kForwardOutput, "u: fp32");
  rows.use("final_norm.output", block.sequence(), s.dtype, Step::kForwardNorm,
           gathers ? Step::kForwardHeadGather : Step::kForwardLastLossProducts,
           "h*u: input of the head product")
      .popped = end;
  NativeBlock::hold(rows.use("final_norm.output_gradient", block.sequence(), s.dtype,
                             gathers ? Step::kForwardHeadReduce : product, Step::kForwardOutput,
                             "h*u: gradient of the head's input"),
                    {.pushed = Step::kForwardNorm, .popped = Step::kForwardOutput});
  rows.use("output_gradient", block.sequence(), s.dtype, Step::kForwardOutput, Step::kBackwardInput,
           "h*u: gradient of the last layer's output, kept for backward");
  add_native_loss(block);
}

void add_native_mtp_projection(NativeBlock& block) {
  block.rows.keep("mtp.projection_input", 2 * block.sequence(), block.shape.dtype,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardInput,
                   .dies = block.weight_step(Step::kBackwardInput, Step::kWeightQkv)},
                  "2h*u: normed embedding and hidden state");
  block.rows.use("mtp.projection_input_gradient", 2 * block.sequence(), block.shape.dtype,
                 Step::kBackwardInput, Step::kBackwardInput, "2h*u");
}

}  // namespace

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind) {
  NativeBlock block{.job = job, .plan = plan, .shape = block_shape(job, plan)};
  switch (kind) {
    case BlockKind::kEmbedding: add_native_embedding(block); break;
    case BlockKind::kHead: add_native_head(block); break;
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss:  // nanotron's
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: break;
    case BlockKind::kSentOutput: add_native_sent_output(block); break;
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
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kDenseLayer:
      add_native_attention(block);
      add_native_dense_ffn(block);
      break;
    case BlockKind::kMoeLayer:
      add_native_attention(block);
      add_native_moe(block);
      break;
  }
  return std::move(block.rows.rows);
}

SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind) {
  return seen_by_layer(job, plan, kind, {}, false);
}

}  // namespace shardplan::native
