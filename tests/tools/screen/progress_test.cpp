#include "tools/screen/progress.h"

#include <doctest/doctest.h>

namespace shardplan {

TEST_CASE("progress speaks of plans and rates in words") {
  CHECK(progress_words({.plans = 35'272'960'088, .decided = 4'232'755'211, .seconds = 23.7}, 25) ==
        "12 % of 35.3 billion plans, 179 million a second, 2 min left (25 s)");
  CHECK(progress_words({.plans = 9'000, .decided = 4'500, .seconds = 0.5}, 1) ==
        "50 % of 9,000 plans, 9,000 a second, 0 s left (1 s)");
  CHECK(progress_words({.plans = 9'000, .decided = 9'000, .estimated = 3, .to_estimate = 10},
                       600) == "30 % of 10 plans to show (10 min)");
}

}  // namespace shardplan
