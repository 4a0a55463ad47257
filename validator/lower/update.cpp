// Gradients summed over data and context parallel ranks, the global norm, and AdamW. Under ZeRO
// every rank of the shard group updates its part; ZeRO 0 takes the norm over the same parts as ZeRO
// 1, so that both clip by the same bits. Sums over tp come last, so that all stages of ZeRO add in
// one order.
#include "validator/lower/update.h"

#include <algorithm>

#include "validator/lower/ops.h"

namespace shardplan {
namespace {

// A run of elements of the flat buffer that the norm counts alike.
struct NormRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double share = 1;  // of its squares that this rank contributes
};

std::vector<NormRange> norm_ranges(const Lowering& l, const FlatBuffer& buffer) {
  return {{.begin = 0, .end = buffer.copy_begin},
          // copy_begin..routers_begin: another stage counts the tied embedding
          {.begin = buffer.routers_begin,
           .end = buffer.elements,
           .share = 1.0 / static_cast<double>(l.plan.tp)}};
}

void add_squares(Lowering& l, const FlatBuffer& buffer, const View& norm) {
  for (const NormRange& range : norm_ranges(l, buffer)) {
    const std::int64_t first = std::max(buffer.shard_begin(), range.begin);
    const std::int64_t last = std::min(buffer.shard_end(), range.end);
    if (first < last) {
      emit(l,
           {.kind = OpKind::kSquaredNorm,
            .in = {buffer.range(buffer.gradient, first, last)},
            .out = {norm},
            .attributes = {.value = range.share, .accumulate = true}},
           "gradient_norm");
    }
  }
}

// The squares of all buffers of one kind of groups, summed over the ranks of the stage. In the
// order of the backward pass: those of the last buffers while the first one's are still reduced.
void add_stage_squares(Lowering& l, bool is_expert, const View& norm) {
  for (auto w = l.chunks.rbegin(); w != l.chunks.rend(); ++w) {
    for (auto buffer = w->buffers.rbegin(); buffer != w->buffers.rend(); ++buffer) {
      if (buffer->is_expert == is_expert) {
        add_squares(l, *buffer, norm);
      }
    }
  }
  const std::int64_t shard = is_expert ? l.groups.expert.shard : l.groups.dense.shard;
  for (const std::int64_t group : {shard, is_expert ? l.groups.experts : l.groups.tp}) {
    if (group >= 0) {
      emit(l, data_collective(OpKind::kAllReduce, norm, norm, group), "gradient_norm.reduce");
    }
  }
}

void take_norm(Lowering& l) {
  const FrameScope scope(l.builder);
  const bool has_experts = l.groups.experts >= 0;
  const View norms = l.builder.push(statistics("gradient_norm", 1, has_experts ? 2 : 1));
  emit(l, {.kind = OpKind::kFill, .out = {norms}}, "gradient_norm");
  const View norm = columns_of(norms, 0, 1);
  add_stage_squares(l, false, norm);
  if (has_experts) {
    const View experts = columns_of(norms, 1, 1);
    add_stage_squares(l, true, experts);
    emit(l, {.kind = OpKind::kAdd, .in = {norm, experts}, .out = {norm}}, "gradient_norm");
  }
  if (l.groups.pp >= 0) {
    emit(l, data_collective(OpKind::kAllReduce, norm, norm, l.groups.pp), "gradient_norm.reduce");
  }
  emit(l,
       {.kind = OpKind::kClipFactor,
        .in = {norm},
        .out = {l.clip},
        .attributes = {.value = l.hyperparameters.max_gradient_norm}},
       "clip");
}

// The elements [begin, end) of the flat buffer.
void update_range(Lowering& l, const FlatBuffer& buffer, std::int64_t begin, std::int64_t end,
                  double weight_decay) {
  if (begin >= end) {
    return;
  }
  const auto part = [&](const View& tensor) { return buffer.range(tensor, begin, end); };
  const Hyperparameters& h = l.hyperparameters;
  emit(l,
       {.kind = OpKind::kAdamW,
        .in = {part(buffer.gradient), columns_of(l.clip, 0, 1), l.schedule},
        .out = {part(buffer.master), part(buffer.exp_avg), part(buffer.exp_avg_sq),
                part(buffer.weight)},
        .attributes = {.epsilon = h.adam_epsilon,
                       .beta1 = h.beta1,
                       .beta2 = h.beta2,
                       .weight_decay = weight_decay}},
       "adamw");
}

void update_buffer(Lowering& l, const FlatBuffer& buffer) {
  const std::int64_t begin = buffer.begin_of(buffer.master);
  const std::int64_t end = buffer.end_of(buffer.master);
  update_range(l, buffer, begin, std::min(end, buffer.norms_begin), l.hyperparameters.weight_decay);
  update_range(l, buffer, std::max(begin, buffer.norms_begin), end, 0);
  if (buffer.updates_part() && buffer.begins_step) {
    gather_updated(l, buffer);
  }
}

// That of an end of the model with the table of both.
const FlatBuffer& tied_buffer(const ChunkWeights& w) {
  return w.buffers[(w.chunk.has_embedding ? w.embedding_unit : w.head_unit).front()];
}

// The gradient of the tied table at one of the two ends, or this rank's shard of it: units of both
// ends have equal shards.
View tied_gradient(const ChunkWeights& w) {
  const FlatBuffer& buffer = tied_buffer(w);
  if (!buffer.has_gradient_shard()) {
    return w.chunk.has_embedding ? w.embedding.gradient : w.head.gradient;
  }
  const FlatParameter& table = buffer.parameters.front();
  const std::int64_t begin = buffer.shard_begin();
  const std::int64_t end = std::min(table.end, buffer.shard_end());
  return begin < end ? buffer.range(buffer.gradient, begin, end) : View{};
}

}  // namespace

bool shares_embedding(const Lowering& l, const ChunkWeights& w) {
  return l.job.model.tied_embeddings && l.groups.embedding >= 0 &&
         (w.chunk.has_embedding || w.chunk.has_head);
}

bool is_tied(const Lowering& l, const ChunkWeights& w, const FlatBuffer& buffer) {
  return shares_embedding(l, w) && &buffer == &tied_buffer(w);
}

Operation data_collective(OpKind kind, const View& in, const View& out, std::int64_t group) {
  return {.kind = kind, .in = {in}, .out = {out}, .group = group, .stream = Stream::kData};
}

void gather_updated(Lowering& l, const FlatBuffer& buffer) {
  emit(l,
       data_collective(OpKind::kAllGather, buffer.owned(buffer.weight), buffer.weight,
                       buffer.groups.shard),
       "gather_weights");
}

void reduce_whole(Lowering& l, const FlatBuffer& buffer) {
  const View& whole = buffer.gradient;
  if (l.plan.zero == 0 && buffer.groups.all >= 0) {
    emit(l, data_collective(OpKind::kAllReduce, whole, whole, buffer.groups.all), "gradients");
  }
  if (buffer.has_master_shard()) {
    emit(l,
         data_collective(OpKind::kReduceScatter, whole, buffer.owned(whole), buffer.groups.shard),
         "gradients");
  }
  finish_gradients(l, buffer);
}

void finish_gradients(Lowering& l, const FlatBuffer& buffer) {
  const std::int64_t begin = buffer.begin_of(buffer.master);
  const std::int64_t end = buffer.end_of(buffer.master);
  if (buffer.groups.replica >= 0) {
    const View own = buffer.range(buffer.gradient, begin, end);
    emit(l, data_collective(OpKind::kAllReduce, own, own, buffer.groups.replica),
         "gradient_shards");
  }
  // Every tp rank routed other tokens; under sequence parallelism its norms saw others, too.
  const std::int64_t first = std::max(begin, buffer.routers_begin);
  const std::int64_t last =
      std::min(end, l.has_sequence_parallel() ? buffer.elements : buffer.norms_begin);
  if (l.groups.tp >= 0 && first < last) {
    const View copies = buffer.range(buffer.gradient, first, last);
    emit(l, data_collective(OpKind::kAllReduce, copies, copies, l.groups.tp),
         "replicated_gradients");
  }
}

void reduce_tied_gradients(Lowering& l, const ChunkWeights& w) {
  if (!shares_embedding(l, w)) {
    return;
  }
  l.phase = "reduce";
  l.microbatch = -1;
  l.layer = -1;
  if (const View gradient = tied_gradient(w); gradient.present()) {
    emit(l, data_collective(OpKind::kAllReduce, gradient, gradient, l.groups.embedding),
         "embedding_gradients");
  }
  const FlatBuffer& buffer = tied_buffer(w);
  if (!buffer.has_gradient_shard()) {
    reduce_whole(l, buffer);
  }
}

void update_weights(Lowering& l) {
  l.phase = "update";
  l.chunk = -1;
  l.builder.cut("update");
  take_norm(l);
  for (const ChunkWeights& w : l.chunks) {
    for (const FlatBuffer& buffer : w.buffers) { update_buffer(l, buffer); }
  }
}

}  // namespace shardplan
