#include "estimator/time/block_time.h"

#include <algorithm>
#include <utility>

#include "estimator/time/block_ends.h"
#include "estimator/time/block_layer.h"
#include "estimator/time/block_replay.h"
#include "estimator/time/block_work.h"
#include "estimator/time/kernel_time.h"

namespace shardplan {
namespace {

// What the host needs beyond the GPU. The two directions are apart, as the loss stands between
// them, but where one microbatch's forward is launched with another's backward: then each takes
// the host's time where the host decides.
HostCost exceeding(const HostCost& needs, double forward_s, double backward_s,
                   const LayerHost& host) {
  if (host.waits) {
    return needs;
  }
  if (host.combines) {
    const double both_s = needs.forward_s + needs.backward_s;
    const double beyond_s = std::max(0.0, both_s - forward_s - backward_s);
    const double forward_host_s = std::clamp(needs.forward_s - forward_s, 0.0, beyond_s);
    return {.forward_s = forward_host_s, .backward_s = beyond_s - forward_host_s};
  }
  return {.forward_s = std::max(0.0, needs.forward_s - forward_s),
          .backward_s = std::max(0.0, needs.backward_s - backward_s)};
}

HostCost launches_of(const LayerHost& host) {
  HostCost launches = host.launches;
  launches.forward_s *= 1 + host.passes_without_gradients;
  return launches;
}

void set_host(BlockTime& time, const LayerHost& host) {
  const HostCost beyond =
      exceeding(launches_of(host), time.forward_total_s(), time.backward_total_s(), host);
  time.forward_host_s = beyond.forward_s;
  time.backward_host_s = beyond.backward_s;
}

// A first round says which kernels a layer runs, and with that the clock at which it runs them.
LayerParts clocked_parts(const BlockContext& context, const LayerSpec& layer) {
  if (!measures_clocks(context.gpu())) {
    return layer_parts(context, layer);
  }
  KernelMix mix;
  BlockContext unclocked = context;
  unclocked.log = nullptr;
  unclocked.mix = &mix;
  layer_parts(unclocked, layer);
  BlockContext clocked = context;
  clocked.clock = clock_factors(context.gpu(), mix, context.model().qk_head_dim());
  return layer_parts(clocked, layer);
}

LayerTime time_without_recompute(const BlockContext& context, const LayerSpec& layer) {
  const LayerParts parts = clocked_parts(context, layer);
  LayerTime known{.layer_kind = 0,
                  .time = sum(parts),
                  .replay = replay_of(context.framework, context.job, layer, parts),
                  .host = layer_host(context.job, context.plan, layer, context.framework.host)};
  BlockTime& time = known.time;
  const double passes = passes_without_gradients(context.framework, context.job);
  known.replay.without_gradients_s = passes * time.forward_s;
  known.host.passes_without_gradients = passes;
  add_passes_without_gradients(context, time);
  set_host(time, known.host);
  time.parameters = local_sum(context.job, context.plan, layer_parameters(context.model(), layer));
  return known;
}

void add_recompute(const BlockKernels& framework, const Recompute& recompute, LayerTime& layer) {
  BlockTime& time = layer.time;
  time.recompute_s = replayed_s(framework, recompute, layer);
  const HostCost launches = launches_of(layer.host);
  const HostCost replay = host_replay_cost(recompute, layer.host);
  const HostCost beyond =
      exceeding({.forward_s = launches.forward_s + replay.forward_s,
                 .backward_s = launches.backward_s + replay.backward_s},
                time.forward_total_s(), time.backward_total_s() + time.recompute_s, layer.host);
  time.recompute_host_s = beyond.forward_s + beyond.backward_s - time.host_s();
}

// Embedding and head have half of the host's cost, the loss the other half: not measured apart.
HeadParts head_parts(const BlockContext& context) {
  HeadParts parts = {
      .logits = logits_time(context), .cast = cast_time(context), .loss = loss_time(context)};
  const HostCost ends = host_cost_of_ends(context.job, context.plan, context.framework.host);
  const HostCost half = {.forward_s = ends.forward_s / 2, .backward_s = ends.backward_s / 2};
  const LayerHost launched = {.launches = half,
                              .waits = waits_for_kernels(context.job, context.framework.host)};
  set_host(parts.logits, launched);
  set_host(parts.loss, launched);
  return parts;
}

}  // namespace

BlockTime layer_time(const BlockKernels& framework, const Job& job, const Plan& plan,
                     const LayerSpec& layer) {
  LayerTime known = time_without_recompute(BlockContext(framework, job, plan), layer);
  add_recompute(framework, plan.recompute, known);
  return known.time;
}

// Rotary positions of the model's width are priced in every layer, whether or not it has them.
LayerKinds layer_kinds(const ModelSpec& model) {
  const auto priced = [&model](std::size_t index) {
    LayerSpec layer = model.layers[index];
    layer.has_rotary = true;
    return layer;
  };
  LayerKinds kinds;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const auto same = std::ranges::find(kinds.firsts, priced(i), priced);
    kinds.of_layer.push_back(static_cast<std::size_t>(same - kinds.firsts.begin()));
    if (same == kinds.firsts.end()) {
      kinds.firsts.push_back(i);
    }
  }
  return kinds;
}

ModelTimes times_without_recompute(const BlockKernels& framework, const Job& job, const Plan& plan,
                                   const LayerKinds& kinds, ProductMemo* products) {
  BlockContext context(framework, job, plan);
  context.products = products;
  ModelTimes times;
  times.embedding = embedding_time(context);
  times.head = head_time(context);
  set_host(times.head, {.launches = host_cost_of_ends(job, plan, framework.host),
                        .passes_without_gradients = passes_without_gradients(framework, job),
                        .waits = waits_for_kernels(job, framework.host)});
  if (framework.parted_loss != nullptr) {
    times.head_parts = head_parts(context);
  }
  times.last_kind = kinds.of_layer.back();
  for (const std::size_t first : kinds.firsts) {
    times.layers.push_back(time_without_recompute(context, job.model.layers[first]));
    times.layers.back().layer_kind = static_cast<std::int64_t>(first);
  }
  if (job.model.num_mtp_layers > 0) {
    times.mtp = mtp_time(context, times.layers[times.last_kind].time, times.head);
    times.mtp.forward_host_s = times.layers[times.last_kind].time.forward_host_s;
    times.mtp.backward_host_s = times.layers[times.last_kind].time.backward_host_s;
  }
  return times;
}

void add_recompute(const BlockKernels& framework, const Recompute& recompute, ModelTimes& times) {
  for (LayerTime& layer : times.layers) { add_recompute(framework, recompute, layer); }
  if (times.mtp.forward_s > 0) {
    times.mtp.recompute_s = times.layers[times.last_kind].time.recompute_s;
    times.mtp.recompute_host_s = times.layers[times.last_kind].time.recompute_host_s;
  }
}

ModelPieces model_pieces(const BlockKernels& framework, const Job& job, const Plan& plan) {
  BlockContext context(framework, job, plan);
  const auto pieces_of = [&context](const auto& make) {
    PieceLog log;
    context.log = &log;
    make();
    return std::move(log.pieces);
  };
  const LayerKinds kinds = layer_kinds(job.model);
  ModelPieces pieces;
  pieces.embedding = pieces_of([&] { embedding_time(context); });
  pieces.head = pieces_of([&] { head_time(context); });
  if (framework.parted_loss != nullptr) {
    pieces.logits = pieces_of([&] { logits_time(context); });
    pieces.cast = pieces_of([&] { cast_time(context); });
    pieces.loss = pieces_of([&] { loss_time(context); });
  }
  for (const std::size_t first : kinds.firsts) {
    pieces.layers.push_back(pieces_of([&] {
      BlockTime layer = sum(clocked_parts(context, job.model.layers[first]));
      add_passes_without_gradients(context, layer);
    }));
  }
  if (job.model.num_mtp_layers > 0) {
    pieces.mtp = pieces.layers[kinds.of_layer.back()];
    pieces.mtp.insert(pieces.mtp.end(), pieces.head.begin(), pieces.head.end());
    const std::vector<TimedPiece> own = pieces_of([&] { mtp_time(context, {}, {}); });
    pieces.mtp.insert(pieces.mtp.end(), own.begin(), own.end());
  }
  return pieces;
}

ModelTimes model_times(const BlockKernels& framework, const Job& job, const Plan& plan) {
  ModelTimes times = times_without_recompute(framework, job, plan, layer_kinds(job.model));
  add_recompute(framework, plan.recompute, times);
  return times;
}

}  // namespace shardplan
