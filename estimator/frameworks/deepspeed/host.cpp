#include "estimator/frameworks/deepspeed/host.h"

#include <array>

#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/time/host_time.h"

namespace shardplan::deepspeed {
namespace {

constexpr auto kNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "zero2_hooks", .member = &HostTable::zero2_hooks},
    {.name = "zero3_hooks", .member = &HostTable::zero3_hooks},
    {.name = "zero3_ends", .member = &HostTable::zero3_ends},
    {.name = "gather", .member = &HostTable::gather},
    {.name = "shared_gather", .member = &HostTable::shared_gather},
    {.name = "gathered_rank", .member = &HostTable::gathered_rank},
});

// A layer has 9 gradients and 13 modules; norms of q and of k add two of either.
constexpr double kZero2HeadNorms = 2.0 / 9;
constexpr double kZero3HeadNorms = 2.0 / 13;

// ZeRO-2 and 3 have hooks, ZeRO-1 none.
HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& /*layer*/,
                     const HostTable& table) {
  HostCost cost;
  if (plan.zero <= 1) {
    return cost;
  }
  const double head_norms = plan.zero == 2 ? kZero2HeadNorms : kZero3HeadNorms;
  add(cost, 1 + (job.model.qk_norm ? head_norms : 0),
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

HostCost end_hooks(const Job& /*job*/, const Plan& plan, const HostTable& table) {
  return plan.zero == 3 ? table.zero3_ends : HostCost{};
}

}  // namespace

constinit const HostLaunches kHost = {
    .numbers = kNumbers, .layer_hooks = layer_hooks, .end_hooks = end_hooks};

}  // namespace shardplan::deepspeed
