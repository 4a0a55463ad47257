// What `calibrate --time` writes is what the reader reads.
#include "data/read/library.h"
#include "estimator/time/kernel_time.h"
#include "tools/report/calibration_time.h"

#include <doctest/doctest.h>

#include <fstream>

namespace shardplan {
namespace {

MeasuredTimes some_times() {
  MeasuredTimes times;
  times.gemm.m = {256, 1024};
  times.gemm.n = {512};
  times.gemm.k = {128, 256, 8192};
  times.gemm.forward = {1e14, 2e14, 3e14, 4e14, 5e14, 6.543219e14};
  times.gemm.input_gradient = times.gemm.forward;
  times.gemm.weight_gradient = times.gemm.forward;
  times.gemm.accumulated = {1.5e14, 2.5e14, 3.5e14, 4.5e14, 5.5e14, 6.5e14};
  times.gemm_fp8 = {.m = {1024},
                    .n = {1024, 2048},
                    .k = {1024, 16384},
                    .forward = {9e14, 1.1e15, 1.2e15, 1.3e15},
                    .input_gradient = {8e14, 8.1e14, 8.2e14, 8.3e14},
                    .weight_gradient = {7e14, 7.1e14, 7.2e14, 7.345678e14},
                    .accumulated = {}};
  times.attention = {{.head_dim = 64,
                      .forward = {{.size = 1024, .value = 3e14}},
                      .backward = {{.size = 1024, .value = 2e14}, {.size = 65536, .value = 4e14}},
                      .tokens = 16384,
                      .heads = 64,
                      .few = {.forward = {{.size = 1024, .value = 1.5e14}},
                              .backward = {{.size = 1024, .value = 1e14}}},
                      .few_heads = 8,
                      .clock_over_products = 1.234}};
  times.grouped = {.forward = {{.size = 128, .value = 1e14}},
                   .input_gradient = {{.size = 128, .value = 2e14}},
                   .weight_gradient = {{.size = 128, .value = 3e14}, {.size = 512, .value = 4e14}}};
  times.copy_bytes_per_s = 4.253e12;
  times.copy_clock_over_products = 1.345;
  times.launch_s = 2.34e-6;
  times.collectives = {
      {.collective = Collective::kAllGather,
       .ranks = 2,
       .seconds = {{.size = 16384, .value = 18.23e-6}, {.size = 1 << 30, .value = 1965e-6}}},
      {.collective = Collective::kAllReduce,
       .ranks = 2,
       .seconds = {{.size = 1 << 30, .value = 3264e-6}}}};
  times.beside = {.products = 0.8, .collectives = 0.35};
  times.copies = {.collectives = {{.collective = Collective::kAllGather,
                                   .ranks = 2,
                                   .seconds = {{.size = 16384, .value = 11.25e-6}}},
                                  {.collective = Collective::kSend,
                                   .ranks = 4,
                                   .seconds = {{.size = 16384, .value = 12.5e-6},
                                               {.size = 1 << 30, .value = 2900e-6}}}},
                  .beside = BesideRates{.products = 0.97, .collectives = 0.88}};
  times.source = "a test";
  return times;
}

GpuSpec read_back(const std::string& gpu_file) {
  const std::string path = SHARDPLAN_BINARY_DIR "/calibrated_time.json";
  std::ofstream(path) << gpu_file;
  return Library().gpu(path);
}

}  // namespace

TEST_CASE("measured rates in a GPU's file are read as they were written, to four digits") {
  const Library library;
  const MeasuredTimes times = some_times();
  for (const std::string& name : library.gpu_names()) {
    CAPTURE(name);
    const GpuSpec gpu =
        read_back(with_measured_times(library.text_of("gpus/" + name + ".json"), times));
    REQUIRE(gpu.times.has_value());
    CHECK(is_calibrated(gpu));
    CHECK(gpu.times->gemm.k == times.gemm.k);
    for (std::size_t i = 0; i < times.gemm.forward.size(); ++i) {
      CHECK(gpu.times->gemm.forward[i] == doctest::Approx(times.gemm.forward[i]).epsilon(1e-3));
    }
    CHECK(gpu.times->gemm_fp8.m == times.gemm_fp8.m);
    CHECK(gpu.times->gemm_fp8.n == times.gemm_fp8.n);
    CHECK(gpu.times->gemm_fp8.k == times.gemm_fp8.k);
    for (std::size_t i = 0; i < times.gemm_fp8.forward.size(); ++i) {
      const auto is_near = [i](const std::vector<double>& read,
                               const std::vector<double>& written) {
        return read.at(i) == doctest::Approx(written[i]).epsilon(1e-3);
      };
      CHECK(is_near(gpu.times->gemm_fp8.forward, times.gemm_fp8.forward));
      CHECK(is_near(gpu.times->gemm_fp8.input_gradient, times.gemm_fp8.input_gradient));
      CHECK(is_near(gpu.times->gemm_fp8.weight_gradient, times.gemm_fp8.weight_gradient));
    }
    CHECK(gpu.times->gemm_fp8.accumulated.empty());
    CHECK(gpu.times->attention[0].backward[1].value == doctest::Approx(4e14));
    CHECK(gpu.times->attention[0].tokens == 16384);
    CHECK(gpu.times->attention[0].heads == 64);
    CHECK(gpu.times->attention[0].few_heads == 8);
    CHECK(gpu.times->attention[0].few.forward[0].value == doctest::Approx(1.5e14));
    CHECK(gpu.times->attention[0].few.backward[0].value == doctest::Approx(1e14));
    CHECK(gpu.times->attention[0].clock_over_products == 1.234);
    CHECK(gpu.times->copy_clock_over_products == 1.345);
    CHECK(gpu.times->gemm.accumulated[4] == doctest::Approx(5.5e14));
    CHECK(gpu.times->grouped.input_gradient[0].value == doctest::Approx(2e14));
    CHECK(gpu.times->grouped.weight_gradient[1].size == 512);
    REQUIRE(gpu.times->beside.has_value());
    CHECK(gpu.times->beside->products == 0.8);
    CHECK(gpu.times->beside->collectives == 0.35);
    const CopiesBetweenGpus& copies = gpu.times->copies;
    REQUIRE(copies.collectives.size() == 2);
    CHECK(copies.collectives[0].seconds[0].value == doctest::Approx(11.25e-6));
    CHECK(copies.collectives[1].collective == Collective::kSend);
    CHECK(copies.collectives[1].ranks == 4);
    CHECK(copies.collectives[1].seconds[1].value == doctest::Approx(2900e-6));
    REQUIRE(copies.beside.has_value());
    CHECK(copies.beside->products == 0.97);
    CHECK(copies.beside->collectives == 0.88);
    CHECK(gpu.times->copy_bytes_per_s == doctest::Approx(4.253e12));
    CHECK(gpu.times->launch_s == doctest::Approx(2.34e-6));
    REQUIRE(gpu.times->collectives.size() == 2);
    CHECK(gpu.times->collectives[0].seconds[0].value == doctest::Approx(18.23e-6));
    CHECK(gpu.times->collectives[1].collective == Collective::kAllReduce);
    CHECK(gpu.context_bytes == library.gpu(name).context_bytes);
    CHECK(gpu.memory_bytes == library.gpu(name).memory_bytes);
  }
}

TEST_CASE("rates that were not measured stay out of a GPU's file") {
  MeasuredTimes times = some_times();
  times.gemm.accumulated.clear();
  times.gemm_fp8 = {};
  times.grouped = {};
  times.beside.reset();
  times.copies = {};
  times.attention[0].few = {};
  times.attention[0].clock_over_products.reset();
  times.copy_clock_over_products.reset();
  const std::string file = with_measured_times(Library().text_of("gpus/H100-SXM-80GB.json"), times);
  for (const char* name : {"accumulated_tflops", "gemm_fp8", "grouped", "beside_products",
                           "few_heads", "clock_over_products", "copies"}) {
    CHECK(file.find(name) == std::string::npos);
  }
  const GpuSpec gpu = read_back(file);
  CHECK_FALSE(gpu.times->beside.has_value());
  CHECK_FALSE(is_measured(gpu, Precision::kFp8));
  CHECK_FALSE(measures_clocks(gpu));
}

TEST_CASE("a GPU's file can be calibrated again, and keeps its lists of numbers on one line") {
  const std::string once =
      with_measured_times(Library().text_of("gpus/H100-SXM-80GB.json"), some_times());
  CHECK(with_measured_times(once, some_times()) == once);
  CHECK(once.find("[[16384,18.23],[1073741824,1965]]") != std::string::npos);
}

}  // namespace shardplan
