#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "data/clusters/machine.h"
#include "data/read/library.h"
#include "estimator/plan/units.h"
#include "tests/data/message_of.h"

using namespace shardplan;

namespace {

std::vector<GpuSpec> all_gpus() {
  const Library library;
  std::vector<GpuSpec> gpus;
  for (const std::string& name : library.gpu_names()) { gpus.push_back(library.gpu(name)); }
  return gpus;
}

// Points of which a larger product takes no more than 4/5 of the time were disturbed.
std::vector<std::string> disturbed(const GemmGrid& grid, const std::vector<double>& rates) {
  const auto seconds = [&](std::size_t i, std::size_t j, std::size_t l) {
    return 2 * grid.m[i] * grid.n[j] * grid.k[l] /
           rates[(i * grid.n.size() + j) * grid.k.size() + l];
  };
  std::vector<std::string> found;
  for (std::size_t i = 0; i < grid.m.size(); ++i) {
    for (std::size_t j = 0; j < grid.n.size(); ++j) {
      for (std::size_t l = 0; l < grid.k.size(); ++l) {
        const auto is_slower_than = [&](std::size_t a, std::size_t b, std::size_t c) {
          return a < grid.m.size() && b < grid.n.size() && c < grid.k.size() &&
                 seconds(a, b, c) < 0.8 * seconds(i, j, l);
        };
        if (is_slower_than(i + 1, j, l) || is_slower_than(i, j + 1, l) ||
            is_slower_than(i, j, l + 1)) {
          found.push_back(std::to_string(grid.m[i]) + " x " + std::to_string(grid.n[j]) + " x " +
                          std::to_string(grid.k[l]));
        }
      }
    }
  }
  return found;
}

// Multiply-adds of one SM and clock, dense bf16 with fp32 accumulation, times two: architecture
// whitepapers of A100 (512 a tensor core), H100 (1024), Blackwell (2048), Ada and GA102 (256; their
// GeForce parts and the L40 run half of it).
double bf16_flops_per_sm_and_clock(const GpuSpec& gpu) {
  switch (gpu.compute_capability) {
    case 80: return 2048;
    case 86: return gpu.id.starts_with("RTX-3") ? 512 : 1024;
    case 89: return gpu.id.starts_with("RTX-4") || gpu.id.starts_with("L40-") ? 512 : 1024;
    case 90: return 4096;
    case 100:
    case 103: return 8192;
    case 120: return 512;
    default: return 0;
  }
}

ClusterSpec cluster_of(const std::string& json) {
  return read_cluster(parse_json(json, "c.json"), "c.json", Library());
}

}  // namespace

TEST_CASE("no measured product takes much longer than a larger one") {
  for (const GpuSpec& gpu : all_gpus()) {
    CAPTURE(gpu.id);
    if (gpu.times && !gpu.times->gemm.m.empty()) {
      const GemmGrid& grid = gpu.times->gemm;
      for (const auto& rates : {grid.forward, grid.input_gradient, grid.weight_gradient}) {
        CHECK(disturbed(grid, rates) == std::vector<std::string>{});
      }
    }
  }
}

TEST_CASE("the GPUs that people train on are shipped") {
  const Library library;
  for (const char* name :
       {"a100", "a100-40gb",   "a100-pcie", "h100",           "h100-pcie", "h100-nvl", "h200",
        "b200", "gb200",       "b300",      "gb300",          "h20",       "h800",     "a800",
        "l40s", "rtx4090",     "rtx5090",   "H200-SXM-141GB", "H100",      "rtx3090",  "a6000",
        "a10",  "rtx6000-ada", "l40",       "gh200"}) {
    CAPTURE(name);
    CHECK_FALSE(library.gpu(name).id.empty());
  }
  CHECK(library.gpu("a100").id == "A100-SXM-80GB");
  CHECK(library.gpu("h100").id == "H100-SXM-80GB");
}

TEST_CASE("every GPU has a source, a file of its name and every number") {
  const Library library;
  for (const std::string& name : library.gpu_names()) {
    CAPTURE(name);
    const GpuSpec gpu = library.gpu(name);
    CHECK(gpu.id == name);
    CHECK(gpu.source.size() > 20);
    CHECK_FALSE(gpu.aliases.empty());
    CHECK(gpu.num_sms > 0);
    CHECK(gpu.memory_bytes_per_s > 0);
    CHECK(gpu.pcie_bytes_per_s > 0);
    const bool is_measured =
        gpu.context_bytes.has_value() || gpu.native.has_value() || gpu.times.has_value();
    CHECK(is_measured == !gpu.calibration_source.empty());
  }
}

TEST_CASE("rates are dense: they ask for a clock that the chip has") {
  // The rate with sparsity, twice as high, asks an A100 for 2.8 GHz and an H200 for 3.7 GHz.
  for (const GpuSpec& gpu : all_gpus()) {
    CAPTURE(gpu.id);
    const double clock_hz =
        gpu.bf16_flops_per_s / static_cast<double>(gpu.num_sms) / bf16_flops_per_sm_and_clock(gpu);
    const bool is_throttled = gpu.id.starts_with("H20-");  // its products, by export rules
    CHECK((clock_hz > 1.35e9) == !is_throttled);
    CHECK(clock_hz < 2.6e9);
    CHECK(gpu.fp16_flops_per_s == gpu.bf16_flops_per_s);
    CHECK(gpu.fp32_flops_per_s < gpu.bf16_flops_per_s);
  }
}

TEST_CASE("what products sustain is below the peak, and in fp8 at most twice what it is in bf16") {
  for (const GpuSpec& gpu : all_gpus()) {
    if (!gpu.sustained) {
      continue;
    }
    CAPTURE(gpu.id);
    CHECK(gpu.sustained->source.size() > 20);
    // A GeForce runs at a higher clock than the one that its peak is of.
    const double most = gpu.id.starts_with("RTX-") ? 1.2 : 1;
    CHECK(gpu.sustained->bf16_flops_per_s < most * gpu.bf16_flops_per_s);
    CHECK(gpu.sustained->bf16_flops_per_s > 0.4 * gpu.bf16_flops_per_s);
    CHECK(gpu.sustained->fp8_flops_per_s <= 2 * gpu.sustained->bf16_flops_per_s);
    CHECK((gpu.sustained->fp8_flops_per_s > 0) == (gpu.fp8_flops_per_s > 0));
    // Attention of 8192 tokens, where the curve is at 0.651 of the peak.
    CHECK(0.651 * gpu.sustained->attention_of_curve * gpu.bf16_flops_per_s <
          gpu.sustained->bf16_flops_per_s);
  }
}

TEST_CASE("a GB300 draws more power than a GB200 and keeps more of the same peak") {
  const Library library;
  const GpuSpec gb200 = library.gpu("gb200");
  const GpuSpec gb300 = library.gpu("gb300");
  CHECK(gb200.bf16_flops_per_s == gb300.bf16_flops_per_s);
  CHECK(gb300.sustained->bf16_flops_per_s > 1.2 * gb200.sustained->bf16_flops_per_s);
  CHECK_FALSE(library.gpu("h200").sustained.has_value());  // whose rates were measured
}

TEST_CASE("the same chip in the same form has the same rates: H100 and H200 SXM") {
  const Library library;
  const GpuSpec h100 = library.gpu("h100");
  const GpuSpec h200 = library.gpu("h200");
  CHECK(h100.num_sms == h200.num_sms);
  CHECK(h100.bf16_flops_per_s == h200.bf16_flops_per_s);
  CHECK(h100.fp8_flops_per_s == h200.fp8_flops_per_s);
  CHECK(h100.fp32_flops_per_s == h200.fp32_flops_per_s);
  CHECK(h100.nvlink_bytes_per_s == h200.nvlink_bytes_per_s);
  CHECK(library.gpu("a100-40gb").bf16_flops_per_s == library.gpu("a100").bf16_flops_per_s);
}

TEST_CASE("fp8 runs at twice the bf16 rate from compute capability 8.9 on and nowhere before") {
  for (const GpuSpec& gpu : all_gpus()) {
    CAPTURE(gpu.id);
    CHECK((gpu.fp8_flops_per_s > 0) == (gpu.compute_capability >= 89));
    if (gpu.fp8_flops_per_s > 0) {
      // Datasheets round: the L40S one gives 362.05 and 733, 1.3 % off.
      CHECK(gpu.fp8_flops_per_s / gpu.bf16_flops_per_s == doctest::Approx(2).epsilon(0.013));
    }
  }
}

TEST_CASE("the driver keeps some of what is sold: capacity in GiB is below the number in GB") {
  for (const GpuSpec& gpu : all_gpus()) {
    CAPTURE(gpu.id);
    const double sold_gb = static_cast<double>(gpu.nominal_memory_bytes) / kGB;
    const double seen_gib = static_cast<double>(gpu.memory_bytes) / static_cast<double>(kGiB);
    CHECK(seen_gib < sold_gb);
    CHECK(seen_gib > 0.92 * sold_gb);
  }
}

// Reserved memory and its share of the card as torchtitan logs them, both to two decimals.
TEST_CASE("an H100 of 96 GB has the memory of which torchtitan logs the shares") {
  const double gib =
      static_cast<double>(Library().gpu("h100-96gb").memory_bytes) / static_cast<double>(kGiB);
  for (const auto& [used_gib, percent] :
       {std::pair{49.66, 52.28}, std::pair{33.21, 34.95}, std::pair{44.84, 47.19}}) {
    CHECK(std::abs(100 * used_gib / gib - percent) < 0.005 + 100 * 0.005 / gib);
  }
}

TEST_CASE("published capacities and rates arrive in base units") {
  const Library library;
  const GpuSpec h200 = library.gpu("h200");
  CHECK(h200.nominal_memory_bytes == 141'000'000'000);
  CHECK(h200.memory_bytes == 150'109'880'320);
  CHECK(h200.bf16_flops_per_s == doctest::Approx(989.4e12));
  CHECK(h200.memory_bytes_per_s == doctest::Approx(4.8e12));
  CHECK(h200.nvlink_bytes_per_s == doctest::Approx(450e9));
  CHECK(library.gpu("b200").fp8_flops_per_s == doctest::Approx(4.5e15));
  CHECK(library.gpu("l40s").nvlink_bytes_per_s == 0);
  CHECK(library.gpu("rtx4090").nominal_memory_bytes == 24'000'000'000);
}

TEST_CASE("the measured memory of an H200 outside the allocator adds up to the measured totals") {
  const GpuSpec h200 = Library().gpu("h200");
  // One GPU, no communicator: 0.75 GiB; with one data-parallel group: 1.58 GiB.
  const std::int64_t alone = h200.context_bytes.value() + h200.library_bytes.value();
  CHECK(alone == 804'061'184);
  CHECK(alone + h200.first_communicator_bytes.value() == 1'695'678'464);
  CHECK_FALSE(Library().gpu("h100").context_bytes.has_value());
}

TEST_CASE("what the native trainer's processes take of a GPU is read where it was measured") {
  const Library shipped;
  std::string text = shipped.text_of("gpus/B200-SXM-180GB.json");
  const std::string nothing = "\"measured\": null";
  REQUIRE(text.find(nothing) != std::string::npos);
  text.replace(
      text.find(nothing), nothing.size(),
      R"("measured": {"source": "here", "native": {"context_bytes": 500, "library_bytes": 70,
                   "nccl_bytes": 9, "first_send_bytes": null, "source": "one run"}})");
  const std::string path = SHARDPLAN_BINARY_DIR "/native_memory.json";
  std::ofstream(path) << text;
  const GpuSpec gpu = shipped.gpu(path);
  REQUIRE(gpu.native.has_value());
  CHECK(gpu.native->context_bytes == 500);
  CHECK(gpu.native->library_bytes == 70);
  CHECK(gpu.native->nccl_bytes == 9);
  CHECK_FALSE(gpu.native->first_send_bytes.has_value());
  CHECK_FALSE(shipped.gpu("b200").native.has_value());
}

TEST_CASE("NODESxGPUS-GPU makes a cluster of any shipped GPU") {
  const Library library;
  const ClusterSpec one = library.cluster("1x8-h200");
  CHECK(one.name == "1x8-h200");
  CHECK(one.world_size() == 8);
  CHECK(one.nvlink_domain == 8);
  CHECK(one.inter_node_bytes_per_s == doctest::Approx(50e9));  // 400 Gbit/s per GPU
  CHECK(one.network == "InfiniBand NDR, 8 rails");
  CHECK(one.intra_node_latency_s == doctest::Approx(3.4e-6));

  const ClusterSpec many = library.cluster("2048x8-h100");
  CHECK(many.world_size() == 16384);
  CHECK(many.nvlink_domain == 8);
  CHECK(library.cluster("1x1-a100").nvlink_domain == 1);
  CHECK(library.cluster("1x2-H200").nvlink_domain == 2);
  CHECK(library.cluster("4x8-a100").inter_node_bytes_per_s == doctest::Approx(25e9));
  for (const std::string& gpu : library.gpu_names()) {
    CHECK(library.cluster("3x4-" + gpu).world_size() == 12);
  }
}

TEST_CASE("an NVLink domain that spans nodes keeps its size, and a job has its nodes of it") {
  const Library library;
  const auto domain_of = [&](const char* name) { return library.cluster(name).gpus_per_domain(); };
  CHECK(library.cluster("2x4-gb200").nvlink_domain == 72);
  CHECK(domain_of("18x4-gb200") == 72);
  CHECK(domain_of("2x4-gb200") == 8);
  CHECK(domain_of("36x4-gb200") == 72);
  CHECK(domain_of("64x4-gb200-nvl72") == 64);
  CHECK(domain_of("2x16-gb200") == 32);  // whole nodes of sixteen: 64 of 72
}

TEST_CASE("a GPU has its share of the host's memory bandwidth") {
  const Library library;
  // DGX H100: sixteen channels of DDR5-4800.
  CHECK(library.cluster("1x8-h100").host_memory_bytes_per_s ==
        doctest::Approx(16 * 4800e6 * 8 / 8));
  CHECK(cluster_of(R"({"gpu": "h100", "host_memory_gb_per_s": 400})").host_memory_bytes_per_s ==
        doctest::Approx(50e9));
  CHECK(library.cluster("1x8-h100").host_slowdown == 1);
  CHECK(library.cluster("2x8-a100").host_slowdown == 1.4);
  CHECK(library.cluster("1x8-h200").host_slowdown == 1.62);
  CHECK(library.cluster("dgx-h200").host_slowdown == 1);
  CHECK(cluster_of(R"({"gpu": "h200", "host_slowdown": 1.2})").host_slowdown == 1.2);
}

TEST_CASE("a shipped cluster takes other counts as NODESxGPUS-NAME") {
  const Library library;
  const ClusterSpec cluster = library.cluster("16x8-aws-p5");
  CHECK(cluster.world_size() == 128);
  CHECK(cluster.network == "EFA v2, 32 rails");
  CHECK(cluster.inter_node_bytes_per_s == doctest::Approx(50e9));  // 3200 Gbit/s over 8 GPUs
  CHECK(cluster.usd_per_gpu_hour == doctest::Approx(12.29));
  CHECK(library.cluster("aws-p4d").inter_node_bytes_per_s == doctest::Approx(6.25e9));
  CHECK(library.cluster("gcp-a3-mega").inter_node_bytes_per_s == doctest::Approx(25e9));
  CHECK(library.cluster("gb200-nvl72").nvlink_domain == 72);
  CHECK(library.cluster("2048x8-meta-24k-roce").world_size() == 16384);
}

TEST_CASE("every shipped cluster is named like its file, has a network and a source") {
  const Library library;
  REQUIRE(library.cluster_names().size() >= 20);
  for (const std::string& name : library.cluster_names()) {
    CAPTURE(name);
    const ClusterSpec cluster = library.cluster(name);
    const JsonFile& file = library.parse("clusters/" + name + ".json");
    CHECK(ObjectReader(file.json, file.file).string("name") == name);
    CHECK(cluster.inter_node_bytes_per_s >= 6.25e9);
    CHECK(cluster.inter_node_bytes_per_s < cluster.gpu.nvlink_bytes_per_s);
    CHECK(cluster.inter_node_latency_s > cluster.intra_node_latency_s);
    CHECK_FALSE(cluster.source.empty());
    CHECK(cluster.usd_per_gpu_hour < 20);
  }
}

TEST_CASE("a cluster object needs a GPU and takes the rest from how it is usually sold") {
  const ClusterSpec cluster = cluster_of(R"({"gpu": "H200-SXM-141GB", "gpus_per_node": 4})");
  CHECK(cluster.name == "1x4-h200");
  CHECK(cluster.nvlink_domain == 4);
  CHECK(cluster.inter_node_bytes_per_s == doctest::Approx(50e9));

  const ClusterSpec own = cluster_of(
      R"({"gpu": "a100", "gpus_per_node": 16, "nodes": 2, "nvlink_domain": 16, "network": "RoCE",
          "rails": 4, "rail_gbit_per_s": 100, "inter_node_latency_us": 20, "usd_per_gpu_hour": 1.5,
          "memory_limit_gib": 64, "name": "mine", "source": "invoice"})");
  CHECK(own.name == "mine");
  CHECK(own.nvlink_domain == 16);
  CHECK(own.inter_node_bytes_per_s == doctest::Approx(4 * 100e9 / 8 / 16));
  CHECK(own.inter_node_latency_s == doctest::Approx(20e-6));
  CHECK(own.memory_limit_bytes.value() == 64 * kGiB);
  CHECK(own.usd_per_gpu_hour == 1.5);
}

TEST_CASE("an NVLink domain on a GPU without NVLink and domains that do not divide are refused") {
  CHECK(message_of([] { cluster_of(R"({"gpu": "l40s", "nvlink_domain": 2})"); }) ==
        "c.json:1: /nvlink_domain: found 2, expected 1: L40S-48GB has no NVLink");
  CHECK(message_of([] { cluster_of(R"({"gpu": "h200", "gpus_per_node": 12})"); }) ==
        "c.json:1: /gpus_per_node: found 12 GPUs per node in NVLink domains of 8, expected one to "
        "be a multiple of the other");
  CHECK(message_of([] { Library().cluster("1x12-h200"); }) ==
        "cluster: found 12 GPUs per node in NVLink domains of 8, expected one to be a multiple of "
        "the other");
}

TEST_CASE("wrong cluster names say what was found and what would be right") {
  const Library library;
  const auto why = [&](const char* name) { return message_of([&] { library.cluster(name); }); };
  CHECK(why("0x8-h200") == "cluster: found 0 nodes, expected an integer from 1 to 131072");
  CHECK(why("1x0-h200") == "cluster: found 0 GPUs per node, expected an integer from 1 to 1024");
  CHECK(why("-1x8-h200") == "cluster: found -1 nodes, expected an integer from 1 to 131072");
  CHECK(why("131072x1024-h200") ==
        "cluster: found 134217728 GPUs in all, expected an integer from 1 to 1048576");
  CHECK(why("99999999999999999999x8-h200") ==
        "cluster: found 9223372036854775807 nodes, expected an integer from 1 to 131072");
  const std::string misspelt = why("1x8-h2000");
  CHECK(misspelt.starts_with(
      "cluster: found GPU \"h2000\", expected one that `shardplan list gpus` "));
  CHECK(misspelt.ends_with("; did you mean \"h200\"?"));
  const std::string no_gpu = why("1x8");
  CHECK(no_gpu.starts_with("cluster: found \"1x8\", expected NODESxGPUS-GPU such as 1x8-h200"));
  CHECK(why("aws-p55").ends_with("; did you mean \"aws-p5\"?"));
  CHECK(message_of([&] {
          library.cluster("1x8-h300", "f.jsonl:7: /cluster: ");
        }).starts_with("f.jsonl:7: /cluster: found GPU \"h300\", expected one that"));
}

TEST_CASE("a GPU object with an unsourced number or a wrong rate is refused") {
  const Library library;
  const std::string good =
      read_text_file(std::string(SHARDPLAN_SOURCE_DIR) + "/data/gpus/H200-SXM-141GB.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { read_gpu(parse_json(text, "g.json"), "g.json"); });
  };
  CHECK(with("989.4", "989.4") == "no error");
  CHECK(with("[\"driver_memory_bytes\"]", "[]") ==
        "g.json:15: /sources: found no source of \"driver_memory_bytes\", expected one for every "
        "number");
  CHECK(with("\"bf16_tflops_dense\": 989.4", "\"bf16_tflops_dense\": 0") ==
        "g.json:8: /bf16_tflops_dense: found integer 0, expected a number from 1 to 1e+09");
  CHECK(with("\"nvlink_gb_per_s_per_direction\": 450", "\"nvlink_gb_per_s_per_direction\": null")
            .ends_with("/usual_cluster/nvlink_domain: found 8, expected 1: H200-SXM-141GB has no "
                       "NVLink"));
  CHECK(with("\"num_sms\"", "\"num_sm\"") ==
        "g.json:1: /num_sms: found nothing, expected an integer from 1 to 10000");
}
