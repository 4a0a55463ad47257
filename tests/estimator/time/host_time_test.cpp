// What hosts need to launch layers: laws of every framework.
#include "estimator/time/host_time.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

#include "tests/estimator/host_costs.h"
#include "tests/measured_host.h"

namespace shardplan {
namespace {

TEST_CASE("our own trainer is not bound by the host") {
  Job job;
  set_measured_framework(job.profile, MemoryModel::kNative);
  CHECK(both(host_cost(job, {.tp = 2}, {})) == 0);
  CHECK(both(host_cost_of_ends(job, {})) == 0);
  CHECK(host_update_s(job, {}) == 0);
}

TEST_CASE("a host that is twice as slow takes twice the time for everything that it launches") {
  for (Job job : {titan(), transformer_engine()}) {
    const auto all = [&](double slowdown) {
      job.cluster.host_slowdown = slowdown;
      Recompute by_operator;
      by_operator.granularity = RecomputeGranularity::kSelective;
      by_operator.policy = "every_second_matmul";
      const HostCost layer = host_cost(job, {.tp = 2, .zero = 3}, {.is_moe = true});
      return both(layer) + both(host_cost_of_ends(job, {})) + host_update_s(job, {}) +
             both(host_replay_cost(by_operator, layer_host(job, {}, {})));
    };
    CHECK(all(2) == doctest::Approx(2 * all(1)));
  }
}

}  // namespace
}  // namespace shardplan
