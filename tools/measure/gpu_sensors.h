// Clocks and power of GPUs, sampled on a thread of their own by NVIDIA's management library, which
// is loaded at run time: programs start and measure without it, and say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace shardplan {

// Means over samples and GPUs.
struct SensorMeans {
  double sm_clock_mhz = 0;
  double power_w = 0;  // of one GPU
  std::int64_t samples = 0;
};

class GpuSensors {
 public:
  // By PCI bus ids as CUDA gives them: "0000:1b:00.0".
  explicit GpuSensors(const std::vector<std::string>& bus_ids,
                      const std::string& library = "libnvidia-ml.so.1");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  // Why there are no samples; "": there are.
  const std::string& why_absent() const { return why_absent_; }

  void start();        // begins a window
  SensorMeans stop();  // ends it; no samples where the library is absent

 private:
  struct Management;
  void sample();

  std::unique_ptr<Management> management_;
  std::string why_absent_;
  std::atomic<bool> samples_ = false;
  std::thread thread_;
  SensorMeans sums_;
};

}  // namespace shardplan
