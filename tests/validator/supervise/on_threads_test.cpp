#include "validator/supervise/on_threads.h"

#include <doctest/doctest.h>

#include <atomic>
#include <system_error>

#include "tests/few_threads.h"

namespace shardplan {

TEST_CASE("no body begins where the system does not give every thread") {
  std::atomic<int> begun = 0;
  const auto run = [&] { on_threads(8, [&](std::size_t) { ++begun; }); };
  {
    const FewThreads three(3);
    CHECK_THROWS_WITH_AS(run(), "threads: found 3, expected 8: Resource temporarily unavailable",
                         std::system_error);
  }
  CHECK(begun == 0);
  run();
  CHECK(begun == 8);
}

}  // namespace shardplan
