// Communication beside computation: a hand count, laws, and what holds without measured rates.
#include "estimator/time/overlap_time.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/time_constants.h"

namespace shardplan {
namespace {

ClusterSpec measured(double products, double collectives) {
  ClusterSpec cluster;
  cluster.gpu.constants = library_constants();
  cluster.gpu.num_sms = 132;
  cluster.gpu.compute_capability = 90;
  cluster.gpu.nvlink_bytes_per_s = 450e9;
  cluster.gpu.times.emplace();
  cluster.gpu.times->beside = BesideRates{.products = products, .collectives = collectives};
  cluster.inter_node_bytes_per_s = 50e9;
  return cluster;
}

constexpr GroupShape kNode = {.size = 8, .ranks_per_domain = 8, .ranks_per_node = 8};
constexpr GroupShape kRail = {.size = 4, .stride = 8};
constexpr GroupShape kNodes = {.size = 32, .ranks_per_domain = 8, .ranks_per_node = 8};

TEST_CASE("a collective at half its rate takes a fifth of the products' while it runs") {
  const BesideCost cost = beside_cost({.products = 0.8, .collectives = 0.5}, {.bytes_s = 1});
  // 1 s becomes 2 s, in which products do 1.6 s of work.
  CHECK(beside_compute_s(cost, 10) == doctest::Approx(0.4));
  // Products of 0.8 s take 1 s, in which half of the collective is done.
  CHECK(beside_compute_s(cost, 0.8) == doctest::Approx(0.7));
  CHECK(beside_compute_s(cost, 0) == doctest::Approx(1));
}

TEST_CASE("what starts a collective takes as long beside products, and takes as much from them") {
  const BesideCost cost =
      beside_cost({.products = 0.8, .collectives = 0.5}, {.start_s = 1, .bytes_s = 2});
  CHECK(cost.alone_s == doctest::Approx(3));
  CHECK(cost.beside_s == doctest::Approx(1 + 2 * 2));
  CHECK(beside_compute_s(cost, 10) == doctest::Approx(0.2 * 5));
}

TEST_CASE(
    "more computation hides no less, and running beside never costs more than running after") {
  for (const BesideRates& keep :
       {BesideRates{.products = 0.8, .collectives = 0.5},
        BesideRates{.products = 0.6, .collectives = 0.3}, BesideRates{}}) {
    const BesideCost cost = beside_cost(keep, {.bytes_s = 2});
    double last_s = 2;
    for (const double compute_s : {0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 1e6}) {
      const double now_s = beside_compute_s(cost, compute_s);
      CHECK(now_s <= last_s + 1e-12);
      CHECK(now_s >= 0);
      last_s = now_s;
    }
    const double never_ends = std::numeric_limits<double>::infinity();
    CHECK(beside_compute_s(cost, never_ends) <= last_s + 1e-12);
  }
}

TEST_CASE("pieces leave one of them with nothing to hide behind") {
  const BesideCost cost = beside_cost({}, {.bytes_s = 1});
  CHECK(in_pieces_s(cost, 10, 4) == doctest::Approx(0.25));
  CHECK(in_pieces_s(cost, 10, 2) == doctest::Approx(0.5));
  // Three quarters beside as much of 0.4 s: 0.25 + 0.75 - 0.3.
  CHECK(in_pieces_s(cost, 0.4, 4) == doctest::Approx(0.7));
}

TEST_CASE("of two collectives in turn each takes its own time beside products") {
  const BesideCost both = beside_cost({}, {.bytes_s = 1}) +
                          beside_cost({.products = 0.8, .collectives = 0.5}, {.bytes_s = 2});
  // 1 s beside products at their rate, then 4 s at four fifths of it.
  CHECK(both.alone_s == doctest::Approx(3));
  CHECK(both.beside_s == doctest::Approx(5));
  CHECK(beside_compute_s(both, 10) == doctest::Approx(0.8));
}

TEST_CASE("copies keep their own share beside products where it was measured") {
  ClusterSpec cluster = measured(0.9, 0.3);
  const auto kept = [&](Carrier carrier) {
    return beside_rates(cluster, kNode, Collective::kAllGather, carrier).collectives;
  };
  CHECK(kept(Carrier::kCopies) == 0.3);
  cluster.gpu.times->copies.beside = BesideRates{.products = 0.95, .collectives = 0.8};
  CHECK(kept(Carrier::kCopies) == 0.8);
  CHECK(kept(Carrier::kNccl) == 0.3);
}

TEST_CASE(
    "FSDP2's collectives keep more beside products than ours and take more, within a domain") {
  const ClusterSpec cluster = measured(0.92, 0.28);
  const auto kept = [&](const GroupShape& group, Carrier carrier) {
    return beside_rates(cluster, group, Collective::kAllGather, carrier);
  };
  CHECK(kept(kNode, Carrier::kWideNccl).collectives > kept(kNode, Carrier::kNccl).collectives);
  CHECK(kept(kNode, Carrier::kWideNccl).products < kept(kNode, Carrier::kNccl).products);
  CHECK(kept(kNodes, Carrier::kWideNccl).products == kept(kNodes, Carrier::kNccl).products);
}

TEST_CASE("what the network holds below the rate left beside products loses nothing there") {
  const ClusterSpec cluster = measured(0.9, 0.3);
  const auto kept = [&](const GroupShape& group, Collective collective) {
    const BesideRates keep = beside_rates(cluster, group, collective);
    CHECK(keep.products == 0.9);
    return keep.collectives;
  };
  CHECK(kept(kNode, Collective::kAllGather) == 0.3);
  CHECK(kept(kNode, Collective::kAllToAll) == 0.3);
  // 0.3 of 369 GB/s against 42.5; a ring of whole nodes has 340 of eight links.
  CHECK(kept(kRail, Collective::kAllGather) == 1);
  CHECK(kept(kNodes, Collective::kAllToAll) == 1);
  CHECK(kept(kNodes, Collective::kAllGather) == doctest::Approx(0.3 * 369 / 340));
}

TEST_CASE("without a measurement Hopper keeps what an H200 does, others lose the channels' SMs") {
  ClusterSpec cluster = measured(0.5, 0.5);
  cluster.gpu.times.reset();
  const auto keep = [&] { return beside_rates(cluster, kNode, Collective::kAllGather); };
  CHECK(keep().products == 0.92);
  CHECK(keep().collectives == 0.28);
  cluster.gpu.compute_capability = 80;
  CHECK(keep().products == doctest::Approx(1 - 16.0 / 132));
  CHECK(keep().collectives == 1);
}

// Two GPUs without NVLink are two domains: the link between them is PCIe.
TEST_CASE("without NVLink the rates are of PCIe inside a node") {
  ClusterSpec cluster = measured(0.9, 0.3);
  cluster.gpu.nvlink_bytes_per_s = 0;
  cluster.gpu.pcie_bytes_per_s = 64e9;
  const GroupShape two = {.size = 2, .ranks_per_node = 2};
  CHECK(beside_rates(cluster, two, Collective::kSend).collectives == doctest::Approx(0.3));
}

}  // namespace
}  // namespace shardplan
