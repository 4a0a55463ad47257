// A loop over cores whose body may throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardplan {

// Returns the threads asked for; 0 asks for OMP_NUM_THREADS, or for one on each processor. Never
// returns more than the processors that this process may run on: threads would wait for each other.
std::int64_t num_threads(std::int64_t asked);

// `thread` is below num_threads(threads); calls with the same one follow each other.
using LoopBody = std::function<void(std::int64_t at, std::size_t thread)>;

// body(at, thread) for every number below `count`, in any order. The caller begins; others join at
// once where their number was asked for, else when the loop has lasted long enough to be worth
// them. Where the system gives no more of them those that there are do it all. An exception ends
// the loop and is thrown again; of several the one with the least number, so that it does not
// depend on the threads.
void in_parallel(std::int64_t count, std::int64_t threads, const LoopBody& body);

}  // namespace shardplan
