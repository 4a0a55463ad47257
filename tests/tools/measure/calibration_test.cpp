// The cluster file that `calibrate` writes, from measurements that nobody made.
#include "tools/measure/calibration.h"
#include "tools/report/calibration.h"
#include "tools/report/calibration_time.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

namespace shardplan {
namespace {

const std::string kSource = "shardplan calibrate, a test, 2026-11-22: driver 580";

ClusterSpec read_back(const std::string& cluster_file) {
  const std::string path = SHARDPLAN_BINARY_DIR "/calibrated_cluster.json";
  std::ofstream(path) << cluster_file;
  return Library().cluster(path);
}

bool has_groups_of_two_sizes(const GpuSpec& gpu) {
  return gpu.times && std::ranges::count(gpu.times->collectives, Collective::kAllGather,
                                         &CollectiveCurve::collective) > 1;
}

// The shipped H200 with all-gathers of groups of two, four and eight.
std::string measured_gpu_file() {
  const Library library;
  const std::string file = library.text_of("gpus/H200-SXM-141GB.json");
  MeasuredTimes times = library.gpu("h200").times.value();
  times.collectives.clear();
  for (const std::int64_t ranks : {2, 4, 8}) {
    times.collectives.push_back(
        {.collective = Collective::kAllGather,
         .ranks = ranks,
         .seconds = {{.size = 16384, .value = 10e-6 + 2.5e-6 * static_cast<double>(ranks)},
                     {.size = 1 << 30, .value = 2e-3}}});
  }
  return with_native_memory(with_measured_times(file, times),
                            {.context_bytes = 5, .library_bytes = 6, .source = "a test"});
}

}  // namespace

TEST_CASE("a calibrated host is a cluster file with its GPU inside, for every GPU") {
  const Library library;
  for (const std::string& name : library.gpu_names()) {
    CAPTURE(name);
    const std::string gpu = library.text_of("gpus/" + name + ".json");
    const ClusterSpec cluster = read_back(calibrated_cluster(gpu, 4, kSource));
    CHECK(cluster.name == "calibrated-1x4-" + name);
    CHECK(cluster.gpus_per_node == 4);
    CHECK(cluster.nodes == 1);
    CHECK(cluster.source == kSource);
    CHECK(cluster.gpu.id == name);
    const ClusterSpec usual = library.cluster("1x4-" + name);
    CHECK(cluster.nvlink_domain == usual.nvlink_domain);
    if (!has_groups_of_two_sizes(cluster.gpu)) {
      CHECK(cluster.intra_node_latency_s == usual.intra_node_latency_s);
    }
  }
}

TEST_CASE("what was measured of GPUs and links stands in the cluster's file") {
  const ClusterSpec cluster = read_back(calibrated_cluster(measured_gpu_file(), 8, kSource));
  REQUIRE(cluster.gpu.times.has_value());
  CHECK(cluster.gpu.times->collectives.size() == 3);
  CHECK(cluster.gpu.times->collectives.back().ranks == 8);
  CHECK(cluster.gpu.native->library_bytes == 6);
  CHECK(cluster.intra_node_latency_s == doctest::Approx(2.5e-6));  // what a further rank adds
}

TEST_CASE("of GPUs that ran the same at once the slowest is found, and a straggler is told") {
  const SlowestGpu usual = slowest_gpu({666.9e12, 665.1e12, 668.0e12, 662.2e12});
  CHECK(usual.gpu == 3);
  CHECK(usual.text.find("666.9 665.1 668.0 662.2; GPU 3") != std::string::npos);
  CHECK(usual.warning.empty());
  const SlowestGpu straggler = slowest_gpu({660e12, 500e12, 665e12});
  CHECK(straggler.gpu == 1);
  CHECK(straggler.warning.starts_with("GPU 1 runs products at 75.8 % of the median"));
  CHECK(slowest_gpu({600e12}).gpu == 0);
}

TEST_CASE("provenance names the command, the version, the day and the machine") {
  const std::string source = calibration_source({"--time", "--gpu", "h200"}, "8x NVIDIA H200");
  CHECK(source.starts_with("shardplan calibrate --time --gpu h200, version "));
  CHECK(source.ends_with(": 8x NVIDIA H200"));
}

}  // namespace shardplan
