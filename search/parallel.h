// A loop over cores whose body may throw; an exception of any iteration is thrown after all.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace shardplan {

// 0: as many as OpenMP gives. More than there are processors would only wait for each other.
inline std::int64_t num_threads(std::int64_t asked) {
  return std::min(asked > 0 ? asked : omp_get_max_threads(),
                  static_cast<std::int64_t>(omp_get_num_procs()));
}

// body(at, thread) for every number below `count`, in any order. `thread` is the number of the
// caller's thread, below num_threads(threads).
template <class Body>
void in_parallel(std::int64_t count, std::int64_t threads, const Body& body) {
  std::exception_ptr failure;  // an exception must not leave a parallel region
  const int team = static_cast<int>(num_threads(threads));
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (std::int64_t at = 0; at < count; ++at) {
    try {
      body(at, static_cast<std::size_t>(omp_get_thread_num()));
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
