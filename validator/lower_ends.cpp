// Vocabulary-parallel ends of the model. The loss is computed over chunks of tokens whose logits
// exist one chunk at a time; its gradient is taken at once, in the forward pass, so that the head's
// product is not computed twice and what stays for backward is [U,h].
#include <algorithm>

#include "validator/lowering.h"

namespace shardplan {
namespace {

View tensor_view(const Lowering& l, std::int64_t tensor) {
  const Tensor& row = l.program().tensors[static_cast<std::size_t>(tensor)];
  return {.tensor = tensor, .rows = row.rows, .cols = row.cols, .stride = row.cols};
}

const MicrobatchInputs& inputs(const Lowering& l) {
  return l.program().inputs[static_cast<std::size_t>(l.microbatch)];
}

// Statistics of all vocabulary shards [tp * rows, 3].
View all_statistics(Lowering& l, const View& own) {
  if (l.plan.tp == 1) {
    return own;
  }
  const View all = l.builder.push(
      exchanged(statistics("loss.gathered_statistics", l.plan.tp * own.rows, own.cols)));
  emit(l,
       {.kind = OpKind::kAllGather,
        .in = {own},
        .out = {all},
        .group = l.groups.tp,
        .stream = Stream::kTensor},
       "loss.gathered_statistics");
  return all;
}

// Loss and gradient of some tokens: x their rows [n,h], dx where their gradient goes.
void loss_of_chunk(Lowering& l, const Weight& head, const View& x, const View& dx,
                   const View& targets) {
  const FrameScope scope(l.builder);
  const double scale = 1.0 / static_cast<double>(l.job.global_batch * l.job.sequence_length);
  const OpAttributes shard{
      .value = scale, .first_row = l.sizes.first_vocab_row, .vocab = l.job.model.vocab};
  const View logits = l.builder.push(temporary("loss.logits", x.rows, l.sizes.vocab_rows));
  const View combined = l.builder.push(statistics("loss.statistics", x.rows, 3));
  linear(l, logits, x, head, "head");
  {
    const FrameScope inner(l.builder);
    const View own = l.builder.push(statistics("loss.shard_statistics", x.rows, 3));
    emit(l,
         {.kind = OpKind::kLossStatistics,
          .in = {logits, targets},
          .out = {own},
          .attributes = shard},
         "loss.statistics");
    const View all = all_statistics(l, own);
    emit(l,
         {.kind = OpKind::kLossCombine,
          .in = {all},
          .out = {combined, l.loss},
          .attributes = {.value = scale, .accumulate = accumulates(l, l.loss)}},
         "loss");
  }
  emit(l,
       {.kind = OpKind::kLossGradient,
        .in = {logits, targets, combined},
        .out = {logits},
        .attributes = shard},
       "loss.gradient");
  linear_input_gradient(l, dx, logits, head, "head");
  linear_weight_gradient(l, head, logits, x, "head");
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

void head_forward(Lowering& l, const ChunkWeights& w, InFlight& flight) {
  const LocalSizes& s = l.sizes;
  flight.last_rstd =
      l.builder.keep(flight.slot, kept(statistics("final_norm.statistics", s.rows, 1)));
  flight.last_normed_gradient =
      l.builder.keep(flight.slot, kept(temporary("final_norm.output_gradient", s.rows, s.hidden)));
  const FrameScope scope(l.builder);
  const View normed = l.builder.push(temporary("final_norm.output", s.rows, s.hidden));
  rms_norm(l, normed, flight.last_rstd, flight.last, w.final_norm, "final_norm");
  const View x = gathered(l, normed, "head.gathered_input");
  const View targets = tensor_view(l, inputs(l).targets);
  write_reduced(l, flight.last_normed_gradient, "head.input_gradient", [&](const View& partial) {
    const std::int64_t step = div_ceil(s.tokens, l.job.profile.cross_entropy_chunks);
    for (std::int64_t row = 0; row < s.tokens; row += step) {
      const std::int64_t count = std::min(step, s.tokens - row);
      loss_of_chunk(l, w.head, rows_of(x, row, count), rows_of(partial, row, count),
                    rows_of(targets, row, count));
    }
  });
}

void head_backward(Lowering& l, const ChunkWeights& w, const InFlight& flight, const View& dx) {
  emit(l,
       {.kind = OpKind::kRmsNormBackward,
        .in = {flight.last_normed_gradient, flight.last, flight.last_rstd, w.final_norm.weight, {}},
        .out = {dx, w.final_norm.gradient},
        .attributes = {.accumulate = accumulates(l, w.final_norm.gradient)}},
       "final_norm");
}

}  // namespace shardplan
