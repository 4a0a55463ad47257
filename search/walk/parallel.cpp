// OpenMP is not used: where its runtime gets no thread it ends the program, and its threads wait
// for each other in busy loops, which costs most where other programs want the processors.
#include "search/walk/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

// To start a thread, and to fill its tables anew, takes a good part of this.
constexpr Clock::duration kWorthThreads = std::chrono::milliseconds(1);

std::int64_t num_processors() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0
             ? CPU_COUNT(&allowed)
             : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// OMP_NUM_THREADS, which batch systems set for a job's share of a node; no limit where it is no
// number above 0.
std::int64_t usual_threads() {
  const char* value = std::getenv("OMP_NUM_THREADS");
  const std::int64_t threads = value == nullptr ? 0 : std::strtoll(value, nullptr, 10);
  return threads > 0 ? threads : std::numeric_limits<std::int64_t>::max();
}

class Loop {
 public:
  Loop(std::int64_t count, const LoopBody& body) : count_(count), body_(body) {}

  bool is_done() const { return next_ >= count_; }

  // False: nothing was left to do.
  bool run_next(std::size_t thread) {
    const std::int64_t at = next_++;
    if (at >= count_) {
      return false;
    }
    try {
      body_(at, thread);
    } catch (...) {
      next_ = count_;  // those before `at` have begun, and end
      const std::lock_guard failing(failing_);
      if (at < failed_at_) {
        failed_at_ = at;
        failure_ = std::current_exception();
      }
    }
    return true;
  }

  void rethrow() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  const std::int64_t count_;
  const LoopBody& body_;
  std::atomic<std::int64_t> next_ = 0;
  std::mutex failing_;
  std::int64_t failed_at_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr failure_;
};

// As many as the system gives, while the loop has something left for them.
void start_threads(std::vector<std::jthread>& threads, std::size_t most, Loop& loop) {
  try {
    threads.reserve(most);
    while (threads.size() < most && !loop.is_done()) {
      threads.emplace_back([&loop, thread = threads.size() + 1] {
        while (loop.run_next(thread)) {}
      });
    }
  } catch (const std::system_error&) {  // the system gives no more
  } catch (const std::bad_alloc&) {}
}

}  // namespace

std::int64_t num_threads(std::int64_t asked) {
  // Asked once: the processors of a process may change while it runs.
  static const std::int64_t processors = num_processors();
  static const std::int64_t usual = usual_threads();
  return std::min(asked > 0 ? asked : usual, processors);
}

void in_parallel(std::int64_t count, std::int64_t threads, const LoopBody& body) {
  Loop loop(count, body);
  {
    std::vector<std::jthread> others;  // joined at the end of the block
    std::size_t most = static_cast<std::size_t>(num_threads(threads)) - 1;
    const Clock::time_point join_at =
        Clock::now() + (threads > 0 ? Clock::duration(0) : kWorthThreads);
    while (loop.run_next(0)) {
      if (most > 0 && Clock::now() >= join_at) {
        start_threads(others, most, loop);
        most = 0;
      }
    }
  }
  loop.rethrow();
}

}  // namespace shardplan
