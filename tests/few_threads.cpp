#include "tests/few_threads.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <thread>  // with pthread_create behind it

namespace shardplan {
namespace {

constexpr int kMany = std::numeric_limits<int>::max();
std::atomic<int> threads_left = kMany;

bool takes_one() {
  return threads_left == kMany || threads_left.fetch_sub(1) > 0;
}

}  // namespace

FewThreads::FewThreads(int count) {
  threads_left = count;
}

FewThreads::~FewThreads() {
  threads_left = kMany;
}

}  // namespace shardplan

// In the place of the C library's.
extern "C" int pthread_create(pthread_t* newthread, const pthread_attr_t* attr,
                              void* (*start_routine)(void*), void* arg) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return shardplan::takes_one() ? create(newthread, attr, start_routine, arg) : EAGAIN;
}
