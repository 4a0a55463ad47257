// GPU tests need a device. Without one they say so by name and end with the code that ctest skips.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("SKIPPED: gpu_tests (kernel tests): no CUDA device on this machine");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
