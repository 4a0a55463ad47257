#include "validator/supervise/operation_times.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "validator/supervise/outcome.h"

namespace shardplan {

TEST_CASE("times of operations are read back to the nanosecond") {
  const OperationTimes times = {.host = "a\tb",
                                .met_s = 1e6 + 0.125,
                                .origin_s = 1e6 + 0.25,
                                .precision_s = 1e-5,
                                .begins_s = {0, 0.5, 1.0000000012},
                                .ends_s = {0.25, 1, 3600}};
  const OperationTimes read = operation_times_of(text_of(times));
  CHECK(read.host == times.host);
  CHECK(read.met_s == times.met_s);
  CHECK(read.origin_s == times.origin_s);
  CHECK(read.precision_s == times.precision_s);
  CHECK(read.begins_s == std::vector<double>{0, 0.5, 1.000000001});
  CHECK(read.ends_s == times.ends_s);
  CHECK_THROWS_AS(operation_times_of("host=a\tclock=1,2,3\tbegins=1,2\tends=1"),
                  std::invalid_argument);
  CHECK_THROWS_AS(operation_times_of("host=a\tclock=1\tbegins=\tends="), std::invalid_argument);
}

TEST_CASE("a rank's result has the times of its traced step, or none") {
  CHECK_FALSE(result_of(text_of(RankResult{})).times.has_value());
  RankResult result;
  result.times = OperationTimes{.host = "h", .begins_s = {0}, .ends_s = {0.5}};
  const RankResult read = result_of(text_of(result));
  REQUIRE(read.times.has_value());
  CHECK(read.times->ends_s == std::vector<double>{0.5});
}

TEST_CASE("ranks of one host share its clock, whenever each heard that all had met") {
  const std::vector<double> origins =
      aligned_origins({{.host = "a", .met_s = 100.000, .origin_s = 99.5, .begins_s = {1}},
                       {.host = "a", .met_s = 100.001, .origin_s = 99.75, .begins_s = {1}}});
  REQUIRE(origins.size() == 2);
  CHECK(origins[0] == doctest::Approx(-1));  // the first operation of all begins at zero
  CHECK(origins[1] - origins[0] == doctest::Approx(0.25));
}

TEST_CASE("hosts whose clocks differ meet at the moment when all were there") {
  const std::vector<double> origins =
      aligned_origins({{.host = "a", .met_s = 100, .origin_s = 101, .begins_s = {0}},
                       {.host = "b", .met_s = 5000, .origin_s = 5003, .begins_s = {0}}});
  CHECK(origins[0] == doctest::Approx(0));
  CHECK(origins[1] == doctest::Approx(2));
}

}  // namespace shardplan
