// Counts calls of operator new in the test program, for tests that something allocates nothing.
#pragma once

#include <cstdint>

// Allocations of the calling thread since it started.
std::int64_t allocation_count();
