// Better links, a law of every plan: more bytes a second or less latency never make a step longer.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "data/read/library.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

struct Improvement {
  std::string name;
  void (*apply)(ClusterSpec& cluster, double times);
};

const std::array<Improvement, 5> kImprovements = {{
    {"network", [](ClusterSpec& of, double times) { of.inter_node_bytes_per_s *= times; }},
    {"NVLink", [](ClusterSpec& of, double times) { of.gpu.nvlink_bytes_per_s *= times; }},
    {"PCIe", [](ClusterSpec& of, double times) { of.gpu.pcie_bytes_per_s *= times; }},
    {"its latency", [](ClusterSpec& of, double times) { of.inter_node_latency_s /= times; }},
    {"NVLink's latency", [](ClusterSpec& of, double times) { of.intra_node_latency_s /= times; }},
}};

// All that may run beside something else, and tokens sent once, where the plan allows it.
void overlap_all(Job& job, const Plan& plan) {
  const auto change = [&](const auto& set) {
    Job changed = job;
    set(changed.profile);
    if (first_broken_rule(changed, plan) == nullptr) {
      job = changed;
    }
  };
  change([](FrameworkProfile& profile) { profile.overlap_grad_reduce = true; });
  change([](FrameworkProfile& profile) { profile.overlap_param_gather = true; });
  change([](FrameworkProfile& profile) { profile.overlap_comm = OverlapComm::kOn; });
  change([](FrameworkProfile& profile) { profile.tp_overlap = TpOverlap::kPieces; });
  change([](FrameworkProfile& profile) { profile.cp_overlap = CpOverlap::kAttention; });
  if (job.profile.memory_model == MemoryModel::kMegatron) {
    change([](FrameworkProfile& profile) { profile.moe_dispatcher = MoeDispatcher::kDeepEp; });
    change([](FrameworkProfile& profile) { profile.overlap_moe_expert_parallel_comm = true; });
  }
}

void check_links(const Job& job, const Plan& plan) {
  for (const Improvement& better : kImprovements) {
    double before_s = estimate_step_time(job, plan).total_s;
    for (const double times : {1.1, 2.0, 4.0, 16.0}) {
      CAPTURE(better.name);
      CAPTURE(times);
      Job improved = job;
      better.apply(improved.cluster, times);
      const double now_s = estimate_step_time(improved, plan).total_s;
      CHECK(now_s <= before_s * (1 + 1e-9));
      before_s = now_s;
    }
  }
}

TEST_CASE("no link makes a step longer by being faster") {
  const Library library;
  RandomJobs draw(library, 20);
  for (const std::string gpu : {"h200", "h100", "a100", "b200", "rtx-4090"}) {
    for (int i = 0; i < 400; ++i) {
      RandomCase drawn = draw.next();
      Job& job = drawn.job;
      const ClusterSpec shape = job.cluster;
      job.cluster = library.cluster("1x8-" + gpu);
      job.cluster.nodes = shape.nodes;
      job.cluster.gpus_per_node = shape.gpus_per_node;
      if (first_broken_rule(job, drawn.plan) != nullptr) {
        continue;
      }
      if (i % 2 == 0) {
        overlap_all(job, drawn.plan);
      }
      CAPTURE(gpu);
      CAPTURE(job.profile.name);
      CAPTURE(i);
      check_links(job, drawn.plan);
    }
  }
}

}  // namespace
}  // namespace shardplan
