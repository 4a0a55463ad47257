// Speed of every own kernel beside the copy bandwidth measured in the same run.
// A share of 100 % means: as fast as a device-to-device copy of the same number of bytes.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/device_buffer.h"
#include "kernels/rms_norm.h"

namespace shardplan {
namespace {

// Values that do not repeat and do not compress: rates on zeros flatter.
template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed) {
  std::minstd_rand generator(seed);
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& value : values) { value = T(static_cast<float>(generator()) / 1e9F - 1.0F); }
  return values;
}

constexpr int kWarmups = 5;
constexpr int kRepeats = 30;

// Median seconds of one call, each between its own pair of events.
double median_s(const std::function<void(cudaStream_t)>& call, cudaStream_t stream) {
  std::vector<float> milliseconds;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < kWarmups + kRepeats; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    call(stream);
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float elapsed = 0;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin, end));
    if (i >= kWarmups) {
      milliseconds.push_back(elapsed);
    }
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  std::ranges::sort(milliseconds);
  return static_cast<double>(milliseconds[milliseconds.size() / 2]) / 1e3;
}

void print_row(const std::string& name, double bytes, double seconds, double copy_bytes_per_s) {
  std::printf("%-44s %9.1f us %8.0f GB/s %6.1f %%\n", name.c_str(), seconds * 1e6,
              bytes / seconds / 1e9, 100 * bytes / seconds / copy_bytes_per_s);
}

double bench_copy(cudaStream_t stream) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  DeviceBuffer<char> from(kBytes), to(kBytes);
  const double seconds = median_s(
      [&](cudaStream_t on) {
        CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, on));
      },
      stream);
  return 2.0 * kBytes / seconds;
}

template <class T>
void bench_rms_norm(const std::string& type, std::int64_t rows, std::int64_t width,
                    double copy_bytes_per_s, cudaStream_t stream) {
  const std::int64_t size = rows * width;
  DeviceBuffer<T> x(random_values<T>(size, 1)), residual(random_values<T>(size, 2)),
      weight(random_values<T>(width, 3)), y(size), sum(size);
  DeviceBuffer<float> rstd(rows), partial(kRmsNormPartials * width), dweight(width);
  const std::string shape = " " + type + " " + std::to_string(rows) + "x" + std::to_string(width);
  const double tensor_bytes = static_cast<double>(size) * sizeof(T);
  const auto row = [&](const std::string& name, double tensors, auto&& call) {
    print_row(name + shape, tensors * tensor_bytes, median_s(call, stream), copy_bytes_per_s);
  };
  row("rms_norm_forward", 2, [&](cudaStream_t on) {
    rms_norm_forward(y.data(), rstd.data(), x.data(), weight.data(), rows, width, 1e-5F, on);
  });
  row("add_rms_norm_forward", 4, [&](cudaStream_t on) {
    add_rms_norm_forward(y.data(), rstd.data(), sum.data(), x.data(), residual.data(),
                         weight.data(), rows, width, 1e-5F, on);
  });
  row("rms_norm_backward", 4, [&](cudaStream_t on) {
    rms_norm_backward(sum.data(), dweight.data(), partial.data(), y.data(), x.data(), rstd.data(),
                      weight.data(), residual.data(), rows, width, on);
  });
}

void run() {
  ScopedStream stream;
  const double copy_bytes_per_s = bench_copy(stream);
  std::printf("copy, 4 GiB, read + write: %.0f GB/s\n", copy_bytes_per_s / 1e9);
  bench_rms_norm<__nv_bfloat16>("bf16", 16384, 4096, copy_bytes_per_s, stream);
  bench_rms_norm<__nv_bfloat16>("bf16", 8192, 8192, copy_bytes_per_s, stream);
  bench_rms_norm<__nv_bfloat16>("bf16", 8192, 16384, copy_bytes_per_s, stream);
  bench_rms_norm<float>("fp32", 8192, 4096, copy_bytes_per_s, stream);
}

}  // namespace
}  // namespace shardplan

int main() {
  shardplan::run();
  return 0;
}
