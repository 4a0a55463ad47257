// The contract of the native profile: programs and estimates agree to the byte.
#include "tests/validator/byte_equality.h"

#include <doctest/doctest.h>

#include "estimator/validity.h"
#include "tests/validator/layouts.h"
#include "tests/validator/random_plans.h"
#include "validator/lower.h"

namespace shardplan {
namespace {

TEST_CASE("names, bytes and lifetimes of random plans are those of the estimate") {
  RandomPlans random(11);
  std::int64_t plans = 0;
  std::int64_t ranks = 0;
  std::int64_t operations = 0;
  std::int64_t different = 0;
  constexpr std::int64_t kPlans = 5000;
  constexpr std::int64_t kShown = 5;
  while (plans < kPlans) {
    const RandomPlan drawn = random.next();
    const ByteEquality equality(drawn.job, drawn.plan);
    ++plans;
    for (const std::int64_t rank : random.ranks_of(drawn)) {
      const Program program = lower(drawn.job, drawn.plan, rank, {});
      ++ranks;
      operations += std::ssize(program.operations);
      if (const auto difference = equality.difference(program)) {
        ++different;
        if (different <= kShown) {
          MESSAGE(drawn.text() << ": " << *difference);
        }
        break;
      }
    }
  }
  MESSAGE(plans << " plans, " << ranks << " ranks, " << operations << " operations");
  CHECK(different == 0);
}

}  // namespace
}  // namespace shardplan
