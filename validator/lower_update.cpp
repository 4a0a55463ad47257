// Gradients summed over data and context parallel ranks, the global norm, and AdamW. Under ZeRO 1
// every rank of the shard group updates its part and the parts are gathered; ZeRO 0 takes the norm
// over the same parts, so that both clip by the same bits.
#include <algorithm>

#include "validator/lowering.h"

namespace shardplan {
namespace {

View range_of(const View& flat, std::int64_t begin, std::int64_t end) {
  return columns_of(flat, begin, end - begin);
}

Operation collective(OpKind kind, const View& in, const View& out, std::int64_t group) {
  return {.kind = kind, .in = {in}, .out = {out}, .group = group, .stream = Stream::kData};
}

std::int64_t shard_elements(const Lowering& l, const ChunkWeights& w) {
  return div_exact(w.elements(), dense_shard_size(l.job, l.plan));
}

View owned(const Lowering& l, const ChunkWeights& w, const View& flat) {
  const std::int64_t begin = owned_begin(l, w);
  return range_of(flat, begin, begin + shard_elements(l, w));
}

// A run of elements of the flat buffer that the norm counts alike.
struct NormRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double share = 1;  // of its squares that this rank contributes
};

std::vector<NormRange> norm_ranges(const Lowering& l, const ChunkWeights& w) {
  return {
      {.begin = 0, .end = w.copy_begin},
      // copy_begin..norms_begin: another stage counts the tied embedding
      {.begin = w.norms_begin, .end = w.elements(), .share = 1.0 / static_cast<double>(l.plan.tp)}};
}

void add_squares(Lowering& l, const ChunkWeights& w, const View& norm) {
  const std::int64_t begin = owned_begin(l, w);
  const std::int64_t end = begin + shard_elements(l, w);
  for (const NormRange& range : norm_ranges(l, w)) {
    const std::int64_t first = std::max(begin, range.begin);
    const std::int64_t last = std::min(end, range.end);
    if (first < last) {
      emit(l,
           {.kind = OpKind::kSquaredNorm,
            .in = {range_of(w.gradient, first, last)},
            .out = {norm},
            .attributes = {.value = range.share, .accumulate = true}},
           "gradient_norm");
    }
  }
}

void take_norm(Lowering& l) {
  const FrameScope scope(l.builder);
  const View norm = l.builder.push(statistics("gradient_norm", 1, 1));
  emit(l, {.kind = OpKind::kFill, .out = {norm}}, "gradient_norm");
  for (const ChunkWeights& w : l.chunks) { add_squares(l, w, norm); }
  for (const std::int64_t group : {l.groups.shard, l.groups.tp, l.groups.pp}) {
    if (group >= 0) {
      emit(l, collective(OpKind::kAllReduce, norm, norm, group), "gradient_norm.reduce");
    }
  }
  emit(l,
       {.kind = OpKind::kClipFactor,
        .in = {norm},
        .out = {l.clip},
        .attributes = {.value = l.hyperparameters.max_gradient_norm}},
       "clip");
}

// The elements [begin, end) of the flat buffer; the optimizer's tensors start with `origin`.
void update_range(Lowering& l, const ChunkWeights& w, std::int64_t origin, std::int64_t begin,
                  std::int64_t end, double weight_decay) {
  if (begin >= end) {
    return;
  }
  const auto state = [&](const View& tensor) {
    return range_of(tensor, begin - origin, end - origin);
  };
  const Hyperparameters& h = l.hyperparameters;
  emit(l,
       {.kind = OpKind::kAdamW,
        .in = {range_of(w.gradient, begin, end), l.clip, l.schedule},
        .out = {state(w.master), state(w.exp_avg), state(w.exp_avg_sq),
                range_of(w.weight, begin, end)},
        .attributes = {.epsilon = h.adam_epsilon,
                       .beta1 = h.beta1,
                       .beta2 = h.beta2,
                       .weight_decay = weight_decay}},
       "adamw");
}

void update_chunk(Lowering& l, const ChunkWeights& w) {
  const bool is_sharded = l.plan.zero > 0;
  const std::int64_t begin = is_sharded ? owned_begin(l, w) : 0;
  const std::int64_t end = begin + w.master.cols;
  update_range(l, w, begin, begin, std::min(end, w.norms_begin), l.hyperparameters.weight_decay);
  update_range(l, w, begin, std::max(begin, w.norms_begin), end, 0);
  if (is_sharded && l.groups.shard >= 0) {
    emit(l, collective(OpKind::kAllGather, owned(l, w, w.weight), w.weight, l.groups.shard),
         "gather_weights");
  }
}

}  // namespace

bool shares_embedding(const Lowering& l, const ChunkWeights& w) {
  return l.job.model.tied_embeddings && l.groups.embedding >= 0 &&
         (w.chunk.has_embedding || w.chunk.has_head);
}

void reduce_gradients(Lowering& l, ChunkWeights& w) {
  l.phase = "reduce";
  l.microbatch = -1;
  l.layer = -1;
  if (shares_embedding(l, w)) {
    const View gradient = w.chunk.has_embedding ? w.embedding.gradient : w.head.gradient;
    emit(l, collective(OpKind::kAllReduce, gradient, gradient, l.groups.embedding),
         "embedding_gradients");
  }
  if (l.has_sequence_parallel()) {
    // Every tp rank saw other tokens.
    const View norms = range_of(w.gradient, w.norms_begin, w.elements());
    emit(l, collective(OpKind::kAllReduce, norms, norms, l.groups.tp), "norm_gradients");
  }
  if (l.plan.zero == 0 && l.groups.dp_cp >= 0) {
    emit(l, collective(OpKind::kAllReduce, w.gradient, w.gradient, l.groups.dp_cp), "gradients");
  }
  if (l.plan.zero > 0) {
    const View own = owned(l, w, w.gradient);
    if (l.groups.shard >= 0) {
      emit(l, collective(OpKind::kReduceScatter, w.gradient, own, l.groups.shard), "gradients");
    }
    if (l.groups.replica >= 0) {
      emit(l, collective(OpKind::kAllReduce, own, own, l.groups.replica), "gradient_shards");
    }
  }
}

void update_weights(Lowering& l) {
  l.phase = "update";
  l.chunk = -1;
  l.builder.cut("update");
  take_norm(l);
  for (const ChunkWeights& w : l.chunks) { update_chunk(l, w); }
}

}  // namespace shardplan
