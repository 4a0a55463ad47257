#include "estimator/frameworks/deepspeed/host.h"

#include <array>

#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/frameworks/pieces/huggingface/mixers/host.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/time/host_time.h"

namespace shardplan::deepspeed {
namespace {

constexpr auto kNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "adapter", .member = &HostTable::adapter},
    {.name = "delta_net", .member = &HostTable::delta_net},
    {.name = "mamba", .member = &HostTable::mamba},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "loss_chunk", .member = &HostTable::loss_chunk},
    {.name = "zero2_hooks", .member = &HostTable::zero2_hooks},
    {.name = "zero3_hooks", .member = &HostTable::zero3_hooks},
    {.name = "zero3_ends", .member = &HostTable::zero3_ends},
    {.name = "gather", .member = &HostTable::gather},
    {.name = "shared_gather", .member = &HostTable::shared_gather},
    {.name = "gathered_rank", .member = &HostTable::gathered_rank},
});

// The layer that was measured has 9 gradients and 13 modules; norms of q and of k add two of
// either. An adapter has two gradients, and two products, a dropout and the layer that it stands
// beside as modules (peft 0.21 tuners/lora/layer.py); frozen weights have no gradients.
constexpr double kGradients = 9;
constexpr double kModules = 13;
constexpr double kGradientsOfAdapter = 2;
constexpr double kModulesOfAdapter = 4;

// ZeRO-2 has hooks at gradients, ZeRO-3 at modules and gradients, ZeRO-1 none.
double hooked_layers(const Job& job, const Plan& plan, double adapters) {
  const double head_norms = job.model.qk_norm ? 2 : 0;
  if (plan.zero == 3) {
    return (kModules + head_norms + kModulesOfAdapter * adapters) / kModules;
  }
  return (adapters > 0 ? kGradientsOfAdapter * adapters : kGradients + head_norms) / kGradients;
}

HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& layer,
                     const HostTable& table) {
  HostCost cost = huggingface::mixer_launches(job, layer, table);
  const double adapters = huggingface::num_adapters(job, layer);
  add(cost, adapters, table.adapter);
  if (plan.zero <= 1) {
    return cost;
  }
  add(cost, hooked_layers(job, plan, adapters),
      plan.zero == 2 ? table.zero2_hooks : table.zero3_hooks);
  if (plan.zero == 3) {
    const DividedTensors weights = zero3_divided_tensors(job);
    const auto ranks = static_cast<double>(data_parallel_size(job, plan));
    add(cost, weights.all, table.gather);
    add(cost, ranks > 1 ? weights.all : 0, table.shared_gather);
    add(cost, weights.gathered_together * (ranks - 1), table.gathered_rank);
  }
  return cost;
}

// Each chunk of a loss calls the head, which gathers its weight and lets go of it: forward, and in
// backward before the chunk is computed again.
HostCost end_hooks(const Job& job, const Plan& plan, const HostTable& table) {
  HostCost cost = plan.zero == 3 ? table.zero3_ends : HostCost{};
  const double chunks = huggingface::num_loss_chunks(job, plan);
  add(cost, chunks, table.loss_chunk);
  if (plan.zero == 3) {
    for (const HostCost& hook : {scaled(1 / kModules, table.zero3_hooks), table.gather}) {
      add(cost, chunks,
          {.forward_s = hook.forward_s, .backward_s = hook.forward_s + hook.backward_s});
    }
  }
  return cost;
}

}  // namespace

constinit const HostLaunches kHost = {
    .numbers = kNumbers, .layer_hooks = layer_hooks, .end_hooks = end_hooks};

}  // namespace shardplan::deepspeed
