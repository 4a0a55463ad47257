// Vocabulary-parallel ends of the model. The loss is computed over chunks of tokens whose logits
// exist one chunk at a time; its gradient is taken at once, in the forward pass, back to the output
// of the last layer: the head's product is not computed twice and [U,h] stays for backward.
#include "validator/lower/ends.h"

#include <algorithm>

#include "validator/lower/ops.h"
#include "validator/lower/tensor.h"

namespace shardplan {
namespace {

View tensor_view(const Lowering& l, std::int64_t tensor) {
  const Tensor& row = l.program().tensors[static_cast<std::size_t>(tensor)];
  return {.tensor = tensor, .rows = row.rows, .cols = row.cols, .stride = row.cols};
}

const MicrobatchInputs& inputs(const Lowering& l) {
  return l.program().inputs[static_cast<std::size_t>(l.microbatch)];
}

// What the loss needs of one chunk of tokens [n,h]; the chunks use it in turn.
struct LossBuffers {
  View logits;    // [n, V/t]
  View combined;  // statistics of the whole vocabulary [n,3]
  View own;       // of this shard
  View gathered;  // of all shards [tp * n,3]; tp 1: own
};

LossBuffers push_loss_buffers(Lowering& l, std::int64_t rows) {
  LossBuffers b;
  b.logits = l.builder.push(temporary("loss.logits", rows, l.sizes.vocab_rows));
  b.combined = l.builder.push(statistics("loss.statistics", rows, 3));
  b.own = l.builder.push(statistics("loss.shard_statistics", rows, 3));
  b.gathered =
      l.plan.tp == 1
          ? b.own
          : l.builder.push(exchanged(statistics("loss.gathered_statistics", l.plan.tp * rows, 3)));
  return b;
}

// The first `rows` tokens of them.
LossBuffers rows_of(const LossBuffers& b, std::int64_t rows, std::int64_t shards) {
  return {.logits = rows_of(b.logits, 0, rows),
          .combined = rows_of(b.combined, 0, rows),
          .own = rows_of(b.own, 0, rows),
          .gathered = rows_of(b.gathered, 0, shards * rows)};
}

// Loss and gradient of some tokens: x their rows [n,h], dx where their gradient goes.
void loss_of_chunk(Lowering& l, const PlacedWeight& head, const LossBuffers& b, const View& x,
                   const View& dx, const View& targets) {
  const double scale =
      1.0 / (static_cast<double>(l.job.global_batch) * static_cast<double>(l.job.sequence_length));
  const OpAttributes shard{
      .value = scale, .first_row = l.sizes.first_vocab_row, .vocab = l.job.model.vocab};
  linear(l, b.logits, x, head, "head");
  emit(l,
       {.kind = OpKind::kLossStatistics,
        .in = {b.logits, targets},
        .out = {b.own},
        .attributes = shard},
       "loss.statistics");
  if (l.plan.tp > 1) {
    emit(l,
         {.kind = OpKind::kAllGather,
          .in = {b.own},
          .out = {b.gathered},
          .group = l.groups.tp,
          .stream = Stream::kTensor},
         "loss.gathered_statistics");
  }
  emit(l,
       {.kind = OpKind::kLossCombine,
        .in = {b.gathered},
        .out = {b.combined, l.loss},
        .attributes = {.value = scale, .accumulate = accumulates(l, l.loss)}},
       "loss");
  emit(l,
       {.kind = OpKind::kLossGradient,
        .in = {b.logits, targets, b.combined},
        .out = {b.logits},
        .attributes = shard},
       "loss.gradient");
  linear_input_gradient(l, dx, b.logits, head, "head");
  linear_weight_gradient(l, head, b.logits, x, "head");
}

}  // namespace

void embedding_forward(Lowering& l, const ChunkWeights& w, const View& x) {
  write_reduced(l, x, "embedding", [&](const View& partial) {
    emit(l,
         {.kind = OpKind::kEmbeddingForward,
          .in = {tensor_view(l, inputs(l).ids), w.embedding.weight},
          .out = {partial},
          .attributes = {.first_row = l.sizes.first_vocab_row}},
         "embedding");
  });
}

void embedding_backward(Lowering& l, const ChunkWeights& w, const View& dx) {
  const FrameScope scope(l.builder);
  const View dy = gathered(l, dx, "embedding.gathered_gradient");
  if (!accumulates(l, w.embedding.gradient)) {
    emit(l, {.kind = OpKind::kFill, .out = {w.embedding.gradient}}, "embedding.weight_gradient");
  }
  emit(l,
       {.kind = OpKind::kEmbeddingBackward,
        .in = {tensor_view(l, inputs(l).ids), dy},
        .out = {w.embedding.gradient},
        .attributes = {.first_row = l.sizes.first_vocab_row}},
       "embedding.weight_gradient");
}

void head(Lowering& l, const ChunkWeights& w, const View& x, const View& dx) {
  const LocalSizes& s = l.sizes;
  const FrameScope scope(l.builder);
  const View rstd = l.builder.push(statistics("final_norm.statistics", s.rows, 1));
  const View dnormed = l.builder.push(temporary("final_norm.output_gradient", s.rows, s.hidden));
  {
    const FrameScope inner(l.builder);
    const View normed = l.builder.push(temporary("final_norm.output", s.rows, s.hidden));
    rms_norm(l, normed, rstd, x, w.final_norm, "final_norm");
    const View all = gathered(l, normed, "head.gathered_input", GatheredFor::kWeightGradient);
    const View targets = tensor_view(l, inputs(l).targets);
    write_reduced(l, dnormed, "head.input_gradient", [&](const View& partial) {
      const std::int64_t step = div_ceil(s.tokens, l.job.profile.cross_entropy_chunks);
      const LossBuffers buffers = push_loss_buffers(l, step);
      for (std::int64_t row = 0; row < s.tokens; row += step) {
        const std::int64_t count = std::min(step, s.tokens - row);
        loss_of_chunk(l, w.head, rows_of(buffers, count, l.plan.tp), rows_of(all, row, count),
                      rows_of(partial, row, count), rows_of(targets, row, count));
      }
    });
  }
  emit(l,
       {.kind = OpKind::kRmsNormBackward,
        .in = {dnormed, x, rstd, w.final_norm.weight, {}},
        .out = {dx, w.final_norm.gradient},
        .attributes = {.accumulate = accumulates(l, w.final_norm.gradient)}},
       "final_norm.backward");
}

}  // namespace shardplan
