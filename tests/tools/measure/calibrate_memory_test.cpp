// What `calibrate --memory` makes of what its plans measured.
#include "tools/measure/calibrate_memory.h"
#include "data/read/library.h"
#include "estimator/plan/units.h"
#include "tools/report/calibration.h"

#include <doctest/doctest.h>

#include <fstream>

namespace shardplan {
namespace {

// 100 MiB of arenas, and `beside` MiB of which the context is 400.
RankMemory memory_of(std::int64_t beside) {
  return {.persistent_arena = 60 * kMiB,
          .dynamic_arena = 40 * kMiB,
          .context = 400 * kMiB,
          .device_used = (100 + beside) * kMiB};
}

}  // namespace

TEST_CASE("what a process takes once is what its arenas and communicators leave over") {
  const CalibrationRun alone{.ranks = {memory_of(450)}, .communicator_bytes = {0}};
  const CalibrationRun reducing{.ranks = {memory_of(450 + 350 + 300), memory_of(450 + 352 + 300)},
                                .communicator_bytes = {300 * kMiB, 300 * kMiB}};
  const CalibrationRun sending{
      .ranks = {memory_of(450 + 352 + 60 + 90), memory_of(450 + 352 + 58 + 120)},
      .communicator_bytes = {90 * kMiB, 120 * kMiB}};
  const NativeMemory memory = fitted_memory(alone, reducing, sending);
  CHECK(memory.context_bytes == 400 * kMiB);
  CHECK(memory.library_bytes == 50 * kMiB);
  CHECK(memory.nccl_bytes == 352 * kMiB);
  CHECK(memory.first_send_bytes == 60 * kMiB);
  const NativeMemory one_gpu = fitted_memory(alone, {}, {});
  CHECK(one_gpu.library_bytes == 50 * kMiB);
  CHECK_FALSE(one_gpu.nccl_bytes.has_value());
}

TEST_CASE("a GPU's file with calibrated values in it is a GPU's file") {
  const Library library;
  for (const std::string& name : library.gpu_names()) {
    CAPTURE(name);
    const std::string path = SHARDPLAN_BINARY_DIR "/calibrated_gpu.json";
    std::ofstream(path) << with_native_memory(
        library.text_of("gpus/" + name + ".json"),
        {.context_bytes = 5, .library_bytes = 6, .nccl_bytes = 7, .source = "a test"});
    const GpuSpec gpu = library.gpu(path);
    REQUIRE(gpu.native.has_value());
    CHECK(gpu.native->nccl_bytes == 7);
    CHECK_FALSE(gpu.native->first_send_bytes.has_value());
    CHECK(gpu.memory_bytes == library.gpu(name).memory_bytes);
    CHECK(gpu.context_bytes == library.gpu(name).context_bytes);
  }
}

}  // namespace shardplan
