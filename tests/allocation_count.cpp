#include "tests/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {
thread_local std::int64_t num_allocations = 0;
}  // namespace

std::int64_t allocation_count() {
  return num_allocations;
}

void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}

// A sanitizer brings its own otherwise, whose memory the deletes below must not free.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size == 0 ? 1 : size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
