#include "search/questions/scaling.h"

#include <doctest/doctest.h>

#include "search/space/resize.h"
#include "tests/search/jobs.h"

namespace shardplan {
namespace {

const ScalingTable& table_of(const std::vector<ScalingTable>& tables, ScalingAxis axis) {
  for (const ScalingTable& table : tables) {
    if (table.axis == axis) {
      return table;
    }
  }
  FAIL("no table of " << name_of(axis));
  return tables.front();
}

std::int64_t bytes_of(const ScalingPoint& point, Component component) {
  return point.stage.components[static_cast<std::size_t>(component)];
}

std::vector<ScalingTable> tables_of_8b() {
  Plan plan;
  plan.tp = 2;
  plan.zero = 1;
  plan.sequence_parallel = true;
  return scaling_tables(llama_8b_job(), plan);
}

}  // namespace

TEST_CASE("every axis has the plan's own value, and it is the plan's estimate") {
  Plan plan;
  plan.tp = 2;
  plan.zero = 1;
  plan.sequence_parallel = true;
  const Job job = llama_8b_job();
  const MemoryEstimate memory = estimate_memory(job, plan);
  const StepTime time = estimate_step_time(job, plan);
  for (const ScalingTable& table : tables_of_8b()) {
    std::int64_t own = 0;
    for (const ScalingPoint& point : table.points) {
      if (point.is_own) {
        ++own;
        CHECK(point.num_gpus == 8);
        CHECK(point.stage.allocated_bytes ==
              memory.stages[static_cast<std::size_t>(memory.worst_stage)].allocated_bytes);
        CHECK(point.time.total_s == time.total_s);
      }
    }
    CHECK(own == 1);
  }
}

TEST_CASE("the sequence is doubled up to 1M tokens and moves activations, not the state") {
  const std::vector<ScalingTable> tables = tables_of_8b();
  const ScalingTable& table = table_of(tables, ScalingAxis::kSequenceLength);
  CHECK(table.points.front().value == 8192);
  CHECK(table.points.back().value == 1 << 20);
  for (std::size_t i = 1; i < table.points.size(); ++i) {
    const ScalingPoint& shorter = table.points[i - 1];
    const ScalingPoint& longer = table.points[i];
    CHECK(longer.value == 2 * shorter.value);
    CHECK(bytes_of(longer, Component::kActivations) ==
          doctest::Approx(2.0 * static_cast<double>(bytes_of(shorter, Component::kActivations)))
              .epsilon(0.02));
    CHECK(bytes_of(longer, Component::kParameters) == bytes_of(shorter, Component::kParameters));
    CHECK(bytes_of(longer, Component::kOptimizer) == bytes_of(shorter, Component::kOptimizer));
  }
}

TEST_CASE("an interleaved plan is compared with none: one stage has no chunks to interleave") {
  const Plan plan = {.pp = 2, .vpp = 2, .zero = 1, .schedule = Schedule::kInterleaved1F1B};
  const std::vector<ScalingTable> tables = scaling_tables(llama_8b_job(), plan);
  const ScalingTable& table = table_of(tables, ScalingAxis::kPp);
  REQUIRE(table.points.front().value == 1);
  CHECK(table.points.front().invalid == "");
}

TEST_CASE("degrees take more GPUs, micro-batch and zero do not") {
  for (const ScalingTable& table : tables_of_8b()) {
    for (const ScalingPoint& point : table.points) {
      switch (table.axis) {
        case ScalingAxis::kTp: CHECK(point.num_gpus == 4 * point.value); break;
        case ScalingAxis::kCp:
        case ScalingAxis::kPp: CHECK(point.num_gpus == 8 * point.value); break;
        case ScalingAxis::kDp: CHECK(point.num_gpus == 2 * point.value); break;
        default: CHECK(point.num_gpus == 8); break;
      }
    }
  }
}

TEST_CASE("a cluster is resized to whole nodes or a part of one") {
  const ClusterSpec cluster = llama_405b_job(4).cluster;
  CHECK(resized(cluster, 4)->nodes == 1);
  CHECK(resized(cluster, 4)->nvlink_domain == 4);
  CHECK(resized(cluster, 64)->nodes == 8);
  CHECK(resized(cluster, 64)->world_size() == 64);
  CHECK_FALSE(resized(cluster, 12).has_value());
}

TEST_CASE("a small part of an NVLink domain that spans nodes grows to the whole domain") {
  ClusterSpec cluster;
  cluster.gpus_per_node = 4;
  cluster.nodes = 2;
  cluster.nvlink_domain = 72;
  CHECK(resized(cluster, 64)->gpus_per_domain() == 64);
  CHECK(resized(cluster, 2)->gpus_per_domain() == 2);
}

}  // namespace shardplan
