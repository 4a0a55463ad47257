#include "tools/measure/gpu_sensors.h"

#include <doctest/doctest.h>

#include "tests/few_threads.h"

namespace shardplan {
namespace {

const std::string kFake = SHARDPLAN_BINARY_DIR "/libfake_management.so";

}  // namespace

TEST_CASE("clock and power are means over the samples of all GPUs in a window") {
  GpuSensors sensors({"0000:01:00.0", "0000:02:00.0"}, kFake);
  CHECK(sensors.why_absent().empty());
  sensors.start();
  const SensorMeans means = sensors.stop();
  CHECK(means.samples >= 2);
  CHECK(means.samples % 2 == 0);
  CHECK(means.sm_clock_mhz == doctest::Approx(1400));
  CHECK(means.power_w == doctest::Approx(695.5));
  sensors.start();
  CHECK(sensors.stop().samples >= 2);  // a window of its own, however short
}

TEST_CASE("without the library, or with a GPU that it does not know, there are no samples") {
  GpuSensors none({"0000:01:00.0"}, "libno-such-library.so.1");
  CHECK(none.why_absent() == "libno-such-library.so.1 cannot be loaded");
  none.start();
  CHECK(none.stop().samples == 0);
  CHECK(GpuSensors({"0000:07:00.0"}, kFake).why_absent() == kFake + " knows no GPU 0000:07:00.0");
}

TEST_CASE("where the system gives no thread there are no samples, and what is measured goes on") {
  GpuSensors sensors({"0000:01:00.0"}, kFake);
  {
    const FewThreads none(0);
    sensors.start();
  }
  CHECK(sensors.stop().samples == 0);
  CHECK(sensors.why_absent() ==
        "no thread samples clocks and power: Resource temporarily unavailable");
  sensors.start();
  CHECK(sensors.stop().samples > 0);
  CHECK(sensors.why_absent().empty());
}

}  // namespace shardplan
