#include "estimator/frameworks/transformers/host.h"

#include <array>

#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/frameworks/pieces/huggingface/mixers/host.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/time/host_time.h"

namespace shardplan::transformers {
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
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "tensor_parallel_update", .member = &HostTable::tensor_parallel_update_s},
    {.name = "sharded", .member = &HostTable::sharded},
    {.name = "sharded_ends", .member = &HostTable::sharded_ends},
});

// Plain parts of weights are launched as whole ones are; their collectives were not measured.
HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& layer,
                     const HostTable& table) {
  HostCost cost = huggingface::mixer_launches(job, layer, table);
  add(cost, huggingface::num_adapters(job, layer), table.adapter);
  add(cost, plan.tp > 1 && !job.profile.tensor_parallel_dtensors ? -1 : 0, table.tensor_parallel);
  return cost;
}

HostCost end_hooks(const Job& job, const Plan& plan, const HostTable& table) {
  return scaled(huggingface::num_loss_chunks(job, plan), table.loss_chunk);
}

}  // namespace

constinit const HostLaunches kHost = {
    .numbers = kNumbers,
    .shardings_per_microbatch = [](const Job&,
                                   const Plan& plan) { return plan.zero > 0 ? 1.0 : 0.0; },
    .layer_hooks = layer_hooks,
    .end_hooks = end_hooks};

}  // namespace shardplan::transformers
