#include "estimator/price.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/estimate.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

TEST_CASE("a price equals the estimates of memory and of time") {
  const Library library;
  RandomJobs random(library, 1);
  for (int i = 0; i < 3000; ++i) {
    const RandomCase drawn = random.next();
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, drawn.plan);
    const MemoryEstimate memory = estimate_memory(drawn.job, drawn.plan);
    const StepTime time = estimate_step_time(drawn.job, drawn.plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const bool equal = priced.allocated_bytes == largest->allocated_bytes &&
                       priced.allocated_stage == largest->pp_rank &&
                       priced.step_time_s == time.total_s;
    INFO(drawn.job.profile.name << " case " << i);
    REQUIRE(equal);
  }
}

}  // namespace
}  // namespace shardplan
