// A thread for every rank of one process.
#pragma once

#include <cstddef>
#include <functional>

namespace shardplan {

// body(index) on a thread for each index below `count`; when all have ended, the first exception by
// index is thrown again. A body that others wait for has to release them itself before it throws.
// None begins where the system does not give all the threads: that is a std::system_error.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace shardplan
