#include "estimator/price.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/estimate.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

TEST_CASE("10,000 prices equal the estimates of memory and time and bound the device's memory") {
  const Library library;
  RandomJobs random(library, 1);
  int failures = 0;  // of the bound on what the driver will report
  for (int i = 0; i < 10000; ++i) {
    const RandomCase drawn = random.next();
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, drawn.plan);
    const MemoryEstimate memory = estimate_memory(drawn.job, drawn.plan);
    const StepTime time = estimate_step_time(drawn.job, drawn.plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const bool equal = priced.allocated_bytes == largest->allocated_bytes &&
                       priced.allocated_stage == largest->pp_rank &&
                       priced.step_time_s == time.total_s;
    const auto fullest =
        std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
    failures += priced.device_used_bytes >= fullest->device_used_bytes ? 0 : 1;
    INFO(drawn.job.profile.name << " case " << i);
    REQUIRE(equal);
  }
  CHECK(failures == 0);
}

}  // namespace
}  // namespace shardplan
