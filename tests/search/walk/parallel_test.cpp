#include "search/walk/parallel.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/few_threads.h"

namespace shardplan {
namespace {

constexpr std::int64_t kCount = 64;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

// How often each number's body runs, long enough for threads to join.
std::vector<std::int64_t> times_run(std::int64_t threads) {
  std::vector<std::int64_t> times(kCount);
  in_parallel(kCount, threads, [&](std::int64_t at, std::size_t thread) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    times[static_cast<std::size_t>(at)] +=
        static_cast<std::int64_t>(thread) < num_threads(threads) ? 1 : kCount;
  });
  return times;
}

}  // namespace

TEST_CASE("a loop runs every number once, and where the system gives no thread as well") {
  const std::vector<std::int64_t> once(kCount, 1);
  CHECK(times_run(1) == once);
  CHECK(times_run(kAny) == once);
  const FewThreads none(0);
  CHECK(times_run(kAny) == once);
  in_parallel(0, kAny, [](std::int64_t, std::size_t) { FAIL("a loop of nothing has a body"); });
}

TEST_CASE("no loop has more threads than processors") {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CHECK(num_threads(1) == 1);
  CHECK(num_threads(kAny) == CPU_COUNT(&allowed));
  CHECK(num_threads(0) <= CPU_COUNT(&allowed));
}

TEST_CASE("of several exceptions a loop throws that of the least number, and then ends") {
  for (const std::int64_t threads : {std::int64_t{1}, kAny}) {
    std::atomic<std::int64_t> begun = 0;
    const auto run = [&] {
      in_parallel(1000, threads, [&](std::int64_t at, std::size_t) {
        ++begun;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (at >= 30) {
          throw std::runtime_error(std::to_string(at));
        }
      });
    };
    CHECK_THROWS_WITH_AS(run(), "30", std::runtime_error);
    CHECK(begun <= 30 + num_threads(threads));
  }
}

}  // namespace shardplan
