#include "tools/measure/gpu_sensors.h"

#include <dlfcn.h>

#include <chrono>
#include <stdexcept>
#include <system_error>

namespace shardplan {
namespace {

// Of nvml.h, which the toolkit does not always carry (NVML API reference, "Initialization and
// Cleanup" and "Device Queries").
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kSmClock = 1;  // NVML_CLOCK_SM
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr double kMilli = 1e-3;

}  // namespace

struct GpuSensors::Management {
  explicit Management(const std::string& name) : library(dlopen(name.c_str(), RTLD_NOW)) {
    if (library == nullptr) {
      throw std::runtime_error(name + " cannot be loaded");
    }
    const auto find = [&](const char* symbol, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(  // NOLINT
          dlsym(library, symbol));
      if (function == nullptr) {
        throw std::runtime_error(name + " has no " + symbol);
      }
    };
    find("nvmlInit_v2", init);
    find("nvmlShutdown", shutdown);
    find("nvmlDeviceGetHandleByPciBusId_v2", by_bus_id);
    find("nvmlDeviceGetClockInfo", clock);
    find("nvmlDeviceGetPowerUsage", power);
    if (init() != kSuccess) {
      throw std::runtime_error(name + " finds no driver");
    }
    is_open = true;
  }
  ~Management() {
    if (is_open) {
      shutdown();
    }
  }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  void* library = nullptr;  // stays loaded
  bool is_open = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus_id)(const char*, Device*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;  // MHz
  int (*power)(Device, unsigned*) = nullptr;       // milliwatts
  std::vector<Device> devices = {};
};

GpuSensors::GpuSensors(const std::vector<std::string>& bus_ids, const std::string& library) {
  try {
    management_ = std::make_unique<Management>(library);
    for (const std::string& id : bus_ids) {
      Device& device = management_->devices.emplace_back(nullptr);
      if (management_->by_bus_id(id.c_str(), &device) != kSuccess) {
        throw std::runtime_error(std::string(library).append(" knows no GPU ").append(id));
      }
    }
  } catch (const std::runtime_error& error) {
    why_absent_ = error.what();
    management_.reset();
  }
}

GpuSensors::~GpuSensors() {
  stop();
}

void GpuSensors::sample() {
  for (Device device : management_->devices) {
    unsigned mhz = 0;
    unsigned milliwatts = 0;
    if (management_->clock(device, kSmClock, &mhz) == kSuccess &&
        management_->power(device, &milliwatts) == kSuccess) {
      sums_.sm_clock_mhz += mhz;
      sums_.power_w += kMilli * milliwatts;
      ++sums_.samples;
    }
  }
}

void GpuSensors::start() {
  stop();
  sums_ = {};
  if (management_ == nullptr) {
    return;
  }
  why_absent_.clear();
  samples_ = true;
  try {
    thread_ = std::thread([this] {
      do {
        sample();
        std::this_thread::sleep_for(kInterval);
      } while (samples_);
    });
  } catch (const std::system_error& error) {
    why_absent_ = std::string("no thread samples clocks and power: ") + error.what();
  }
}

SensorMeans GpuSensors::stop() {
  samples_ = false;
  if (thread_.joinable()) {
    thread_.join();
  }
  SensorMeans means = sums_;
  if (means.samples > 0) {
    means.sm_clock_mhz /= static_cast<double>(means.samples);
    means.power_w /= static_cast<double>(means.samples);
  }
  return means;
}

}  // namespace shardplan
