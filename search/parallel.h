// A loop over cores whose body may throw; an exception of any iteration is thrown after all.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace shardplan {

// 0: as many as OpenMP gives.
inline int num_threads(std::int64_t asked) {
  return asked > 0 ? static_cast<int>(asked) : omp_get_max_threads();
}

// body(at) for every number below `count`, in any order.
template <class Body>
void in_parallel(std::int64_t count, std::int64_t threads, const Body& body) {
  std::exception_ptr failure;  // an exception must not leave a parallel region
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads(threads))
  for (std::int64_t at = 0; at < count; ++at) {
    try {
      body(at);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace shardplan
