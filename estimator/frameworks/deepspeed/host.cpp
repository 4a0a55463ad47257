#include "estimator/frameworks/deepspeed/host.h"

#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/time/host_time.h"

namespace shardplan::deepspeed {
namespace {

// What DeepSpeed's hooks add to a layer, and to the ends of a microbatch: ZeRO-2's at gradients,
// ZeRO-3's at modules and gradients (data/measured/deepspeed_h200.jsonl, ds-host-..., less the
// gathers of the three weights of these layers that are large enough).
constexpr HostCost kZero2Hooks = microseconds(0, 1700);
constexpr HostCost kZero3Hooks = microseconds(2300, 3520);
// What ZeRO-3 adds for each weight that it gathers and lets go of, in either direction; with
// several ranks; and for each of those where several weights share a gather, whose parts
// AllGatherCoalescedHandle.wait puts together one by one (runtime/zero/partition_parameters.py of
// 0.19.6). Shares of the hooks above, from Python's time on a CPU with collectives that move
// nothing (Llama-3-8B's layers in torch's group "fake" of 1 to 256 ranks): 14 gathers instead of 4
// take a fifth more, with 2 ranks a third, with 64 two thirds.
constexpr HostCost kZero3Gather = microseconds(200, 160);
constexpr HostCost kZero3SharedGather = microseconds(60, 50);
constexpr HostCost kZero3GatheredRank = microseconds(4, 4);
constexpr HostCost kZero3Ends = microseconds(5000, 9000);
// A layer has 9 gradients and 13 modules; norms of q and of k add two of either.
constexpr double kZero2HeadNorms = 2.0 / 9;
constexpr double kZero3HeadNorms = 2.0 / 13;

// Launches of q's and k's norms, not measured: of Hugging Face's layer, 38 kernels forward and
// about 80 backward in the times below, each norm has 8 and 16.
constexpr HostCost kEagerHeadNorms = microseconds(380, 640);

// Hugging Face's eager layer under ZeRO-1: a sixteenth of the difference between models of 2
// and 6 layers and four microbatches (data/measured/deepspeed_h200.jsonl, ds-host-z1-...).
constexpr HostTable kTable = {.host_slowdown = kMeasuringHost,
                              .layer = microseconds(900, 1600),
                              .head_norms = kEagerHeadNorms,
                              .ends = microseconds(1700, 2500)};

// ZeRO-2 and 3 have hooks, ZeRO-1 none.
HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& /*layer*/) {
  HostCost cost;
  if (plan.zero <= 1) {
    return cost;
  }
  const double head_norms = plan.zero == 2 ? kZero2HeadNorms : kZero3HeadNorms;
  add(cost, 1 + (job.model.qk_norm ? head_norms : 0), plan.zero == 2 ? kZero2Hooks : kZero3Hooks);
  if (plan.zero == 3) {
    const DividedTensors weights = zero3_divided_tensors(job);
    const auto ranks = static_cast<double>(data_parallel_size(job, plan));
    add(cost, weights.all, kZero3Gather);
    add(cost, ranks > 1 ? weights.all : 0, kZero3SharedGather);
    add(cost, weights.gathered_together * (ranks - 1), kZero3GatheredRank);
  }
  return cost;
}

HostCost end_hooks(const Job& /*job*/, const Plan& plan) {
  return plan.zero == 3 ? kZero3Ends : HostCost{};
}

}  // namespace

constinit const HostLaunches kHost = {.table = [](const FrameworkProfile&) { return &kTable; },
                                      .layer_hooks = layer_hooks,
                                      .end_hooks = end_hooks};

}  // namespace shardplan::deepspeed
