// Collectives: bus factors, links, hierarchy.
#include "estimator/time/collective_time.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/time_constants.h"

namespace shardplan {
namespace {

ClusterSpec cluster_without_latency() {
  ClusterSpec cluster;
  cluster.gpu.constants = library_constants();
  cluster.gpu.nvlink_bytes_per_s = 450e9;
  cluster.gpu.pcie_bytes_per_s = 64e9;
  cluster.inter_node_bytes_per_s = 50e9;
  return cluster;
}

GroupShape inside(std::int64_t size) {
  return {.size = size, .stride = 1, .ranks_per_domain = size, .ranks_per_node = size};
}

constexpr double kBytes = 1e12;  // so large that the launch does not matter

TEST_CASE("an all-gather moves (n - 1) / n of its bytes at what NCCL reaches of NVLink") {
  const ClusterSpec cluster = cluster_without_latency();
  CHECK(all_gather_s(cluster, inside(8), kBytes) ==
        doctest::Approx(kBytes * 7 / 8 / 369e9).epsilon(0.001));
  CHECK(all_reduce_s(cluster, inside(8), kBytes) ==
        doctest::Approx(2 * all_gather_s(cluster, inside(8), kBytes)));
  CHECK(all_to_all_s(cluster, inside(8), kBytes) ==
        doctest::Approx(all_gather_s(cluster, inside(8), kBytes)));
}

// SimuMax at 4dcaae51, configs/system/b200_bf16_ceperm.json, eight B200 of one host: all-gather,
// reduce-scatter and all-to-all at 0.6735, 0.6731 and 0.5968 of 900 GB/s.
TEST_CASE("NCCL reaches less of NVLink 5, and less in an all-to-all than in a ring") {
  ClusterSpec cluster = cluster_without_latency();
  cluster.gpu.nvlink_bytes_per_s = 900e9;
  cluster.gpu.compute_capability = 100;
  CHECK(all_gather_s(cluster, inside(8), kBytes) ==
        doctest::Approx(kBytes * 7 / 8 / 606e9).epsilon(0.01));
  CHECK(all_to_all_s(cluster, inside(8), kBytes) ==
        doctest::Approx(kBytes * 7 / 8 / 537e9).epsilon(0.01));
  cluster.gpu.compute_capability = 90;
  CHECK(all_gather_s(cluster, inside(8), kBytes) ==
        doctest::Approx(kBytes * 7 / 8 / 738e9).epsilon(0.001));
}

TEST_CASE("a group of one rank communicates for nothing") {
  const ClusterSpec cluster = cluster_without_latency();
  CHECK(all_gather_s(cluster, inside(1), kBytes) == 0);
  CHECK(all_reduce_s(cluster, inside(1), kBytes) == 0);
  CHECK(all_to_all_s(cluster, inside(1), kBytes) == 0);
  CHECK(send_s(cluster, inside(1), kBytes) == 0);
}

TEST_CASE("a ring through two nodes has the narrower of NVLink and the node's eight links") {
  const ClusterSpec cluster = cluster_without_latency();
  const GroupShape rails = {.size = 16, .stride = 1, .ranks_per_domain = 8, .ranks_per_node = 8};
  const GroupShape lone = {.size = 2, .stride = 8, .ranks_per_domain = 1, .ranks_per_node = 1};
  const double network = 50e9 * 0.85;
  CHECK(all_gather_s(cluster, rails, kBytes) ==
        doctest::Approx(kBytes * 15 / 16 / (8 * network)).epsilon(0.001));
  CHECK(all_gather_s(cluster, lone, kBytes) ==
        doctest::Approx(kBytes / 2 / network).epsilon(0.001));
  CHECK(all_to_all_s(cluster, rails, kBytes) ==
        doctest::Approx(kBytes / 2 / network).epsilon(0.001));
  CHECK(send_s(cluster, lone, kBytes) == doctest::Approx(kBytes / network).epsilon(0.001));
}

TEST_CASE("without NVLink a node communicates over PCIe, not over the network") {
  const ClusterSpec cluster = cluster_without_latency();
  const GroupShape node = {.size = 8, .stride = 1, .ranks_per_domain = 1, .ranks_per_node = 8};
  CHECK(all_gather_s(cluster, node, kBytes) ==
        doctest::Approx(kBytes * 7 / 8 / (64e9 * 0.8)).epsilon(0.001));
}

TEST_CASE("an all-reduce over many nodes climbs a tree where the ring is too long") {
  ClusterSpec cluster = cluster_without_latency();
  cluster.inter_node_latency_s = 14e-6;
  const GroupShape lone = {.size = 512, .stride = 8, .ranks_per_domain = 1, .ranks_per_node = 1};
  CHECK(all_reduce_s(cluster, lone, 0) == doctest::Approx(20e-6 + 2 * 9 * 28e-6));  // 2^9 nodes
  // 4 MB at 0.92 of the network, up and down.
  CHECK(all_reduce_s(cluster, lone, 4e6) ==
        doctest::Approx(20e-6 + 2 * (9 * 28e-6 + 4e6 / (0.92 * 50e9 * 0.85))));
  // Large tensors: the ring's bandwidth, both ways.
  CHECK(all_reduce_s(cluster, lone, kBytes) ==
        doctest::Approx(2 * kBytes * 511 / 512 / (50e9 * 0.85)).epsilon(0.001));
}

TEST_CASE("small tensors cost latency: every further rank adds a step") {
  ClusterSpec cluster = cluster_without_latency();
  cluster.intra_node_latency_s = 3e-6;
  cluster.inter_node_latency_s = 14e-6;
  const GroupShape two_nodes = {
      .size = 16, .stride = 1, .ranks_per_domain = 8, .ranks_per_node = 8};
  CHECK(all_gather_s(cluster, inside(8), 0) - all_gather_s(cluster, inside(4), 0) ==
        doctest::Approx(4 * 3e-6));
  CHECK(all_gather_s(cluster, two_nodes, 0) - all_gather_s(cluster, inside(8), 0) ==
        doctest::Approx(14e-6 + 7 * 3e-6));
}

TEST_CASE("messages of an all-to-all are on their way together, however many members it has") {
  ClusterSpec cluster = cluster_without_latency();
  cluster.intra_node_latency_s = 3e-6;
  CHECK(all_to_all_s(cluster, inside(64), 0) ==
        doctest::Approx(all_to_all_s(cluster, inside(2), 0)));
}

// One second for a gigabyte between two ranks, half of it where a tenth is sent.
ClusterSpec measured_cluster() {
  ClusterSpec cluster = cluster_without_latency();
  cluster.intra_node_latency_s = 1e-3;
  cluster.gpu.times.emplace();
  for (const auto& [collective, name] : kCollectives) {
    cluster.gpu.times->collectives.push_back(
        {.collective = collective,
         .ranks = 2,
         .seconds = {{.size = 1e8, .value = 0.5}, {.size = 1e9, .value = 1}}});
  }
  return cluster;
}

TEST_CASE("measured collectives count between their sizes, and beyond them by latency and rate") {
  const ClusterSpec cluster = measured_cluster();
  CHECK(all_gather_s(cluster, inside(2), 1e9) == doctest::Approx(1));
  CHECK(all_gather_s(cluster, inside(2), 1e7) == doctest::Approx(0.5));
  CHECK(all_gather_s(cluster, inside(2), 3e9) == doctest::Approx(3));
  CHECK(reduce_scatter_s(cluster, inside(2), std::sqrt(1e17)) == doctest::Approx(std::sqrt(0.5)));
  CHECK(send_s(cluster, inside(2), 2e9) == doctest::Approx(2));
}

TEST_CASE("a group that was not measured sends the same bytes over a link in as much time") {
  const ClusterSpec cluster = measured_cluster();
  // Of 8 ranks' tensor 7/8 cross a link, of 2 ranks' a half; six more steps of a millisecond.
  CHECK(all_gather_s(cluster, inside(8), 4e9) == doctest::Approx(7 + 6e-3));
  CHECK(all_reduce_s(cluster, inside(8), 4e9) == doctest::Approx(7 + 12e-3));
  CHECK(all_to_all_s(cluster, inside(8), 4e9) == doctest::Approx(7));
  CHECK(send_s(cluster, inside(8), 4e9) == doctest::Approx(4));
}

// A quarter of a second for a gigabyte between two ranks; nothing of ring shifts.
ClusterSpec copying_cluster() {
  ClusterSpec cluster = measured_cluster();
  cluster.gpu.times->copies.collectives = {
      {.collective = Collective::kAllGather,
       .ranks = 2,
       .seconds = {{.size = 1e8, .value = 0.1}, {.size = 1e9, .value = 0.25}}}};
  return cluster;
}

TEST_CASE("copies take what was measured of them, and by the bytes received without steps") {
  const ClusterSpec cluster = copying_cluster();
  const auto gather_s = [&](std::int64_t ranks, double bytes) {
    return all_gather_s(cluster, inside(ranks), bytes, Carrier::kCopies);
  };
  CHECK(gather_s(2, 1e9) == doctest::Approx(0.25));
  CHECK(gather_s(8, 4e9) == doctest::Approx(7 * 0.25));  // 3.5 GB received, as of 7 GB by two
  CHECK(gather_s(1, 1e9) == 0);
  for (double bytes = 1e7; bytes < 1e11; bytes *= 1.5) {
    CHECK(gather_s(4, 2 * bytes) >= gather_s(4, bytes));
    CHECK(gather_s(8, bytes) >= gather_s(4, bytes));
  }
}

TEST_CASE("what is summed in parts is pulled as for an all-to-all, or else as what is gathered") {
  ClusterSpec cluster = copying_cluster();
  const auto sum_s = [&] { return reduce_scatter_s(cluster, inside(4), 1e9, Carrier::kCopies); };
  CHECK(sum_s() == all_gather_s(cluster, inside(4), 1e9, Carrier::kCopies));
  cluster.gpu.times->copies.collectives.push_back({.collective = Collective::kAllToAll,
                                                   .ranks = 4,
                                                   .seconds = {{.size = 1e9, .value = 0.125}}});
  CHECK(sum_s() == 0.125);
}

TEST_CASE("copies that were not measured, and those that NCCL does, have NCCL's times") {
  const ClusterSpec copying = copying_cluster();
  const ClusterSpec measured = measured_cluster();
  const GroupShape rails = {.size = 16, .stride = 1, .ranks_per_domain = 8, .ranks_per_node = 8};
  CHECK(send_s(copying, inside(2), 1e9, Carrier::kCopies) == send_s(measured, inside(2), 1e9));
  CHECK(all_gather_s(copying, inside(2), 1e9) == all_gather_s(measured, inside(2), 1e9));
  CHECK(all_gather_s(copying, rails, 1e9, Carrier::kCopies) == all_gather_s(measured, rails, 1e9));
  CHECK(all_gather_s(measured, inside(2), 1e9, Carrier::kCopies) ==
        all_gather_s(measured, inside(2), 1e9));
}

TEST_CASE("copies reach the members of one host and NVLink domain, few of them") {
  const auto copies = [&](const GroupShape& group) {
    return carrier_of(true, group) == Carrier::kCopies;
  };
  CHECK(copies(inside(8)));
  CHECK_FALSE(copies(inside(16)));  // more than copy from each other
  CHECK_FALSE(copies({.size = 8, .ranks_per_domain = 8, .ranks_per_node = 4}));
  CHECK_FALSE(copies({.size = 8, .ranks_per_domain = 4, .ranks_per_node = 8}));
  CHECK(carrier_of(false, inside(8)) == Carrier::kNccl);
}

TEST_CASE("what was measured inside an NVLink domain says nothing of groups beyond it") {
  const ClusterSpec measured = measured_cluster();
  ClusterSpec documented = measured;
  documented.gpu.times.reset();
  const GroupShape rails = {.size = 16, .stride = 1, .ranks_per_domain = 8, .ranks_per_node = 8};
  CHECK(all_gather_s(measured, rails, 1e9) == all_gather_s(documented, rails, 1e9));
  CHECK(all_gather_s(measured, inside(8), 1e9) != all_gather_s(documented, inside(8), 1e9));
}

}  // namespace
}  // namespace shardplan
