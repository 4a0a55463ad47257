// Memory-bound kernels by how well they use the memory.
#include "estimator/time/elementwise.h"

#include <doctest/doctest.h>

#include "tests/estimator/layer_kernels.h"

namespace shardplan {
namespace {

TEST_CASE("kernels that read badly take longer for the same bytes") {
  const double one = microseconds({.fused = 1e9});
  CHECK(microseconds({.streamed = 1e9}) > one);
  CHECK(microseconds({.converted = 1e9}) > microseconds({.streamed = 1e9}));
  CHECK(microseconds({.rearranged = 1e9}) > microseconds({.converted = 1e9}));
}

}  // namespace
}  // namespace shardplan
