// A management library of two GPUs, for the test of gpu_sensors: the names of NVML, made-up values.
#include <string_view>

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  static int gpus[2];
  const std::string_view name = id;
  *device = name == "0000:01:00.0" ? &gpus[0] : &gpus[1];
  return name == "0000:01:00.0" || name == "0000:02:00.0" ? 0 : 6;
}
int nvmlDeviceGetClockInfo(void* /*device*/, int kind, unsigned* mhz) {
  *mhz = 1400;
  return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void* /*device*/, unsigned* milliwatts) {
  *milliwatts = 695500;
  return 0;
}
}
// NOLINTEND(readability-identifier-naming)
