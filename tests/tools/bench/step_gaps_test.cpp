#include "tools/bench/step_gaps.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

// Two products, a collective behind the first that the third product waits for, and one that
// nothing waits for.
Program example() {
  Program program;
  const auto add = [&](OpKind kind, Stream stream, const std::string& label) -> Operation& {
    program.operations.push_back({.kind = kind, .stream = stream, .label = label});
    return program.operations.back();
  };
  add(OpKind::kGemm, Stream::kCompute, "first").records = 0;
  Operation& gather = add(OpKind::kAllGather, Stream::kTensor, "gather");
  gather.waits = {0};
  gather.records = 1;
  add(OpKind::kGemm, Stream::kCompute, "second");
  add(OpKind::kGemm, Stream::kCompute, "third").waits = {1};
  add(OpKind::kReduceScatter, Stream::kData, "reduce");
  program.num_events = 2;
  return program;
}

}  // namespace

TEST_CASE("a gap is counted for the operation that ended last of those it waited for") {
  //           first       gather       second        third         reduce
  const std::vector<OperationTime> times = {{1, 2}, {2, 5}, {2, 3}, {5.5, 6}, {6, 8}};
  const StepGaps gaps = step_gaps(example(), times);
  CHECK(gaps.step_s == 7);
  CHECK(gaps.all_s == 4.5);  // 3 to 5.5 and 6 to 8
  REQUIRE(gaps.waits.size() == 2);
  CHECK(gaps.waits[0].label == "gather");
  CHECK(gaps.waits[0].count == 1);
  CHECK(gaps.waits[0].seconds == 2.5);
  CHECK(gaps.waits[1].label == "the end");
  CHECK(gaps.waits[1].seconds == 2);
  CHECK(gaps.communication_s == 5);
  CHECK(gaps.hidden_s == 1);  // beside the second product
}

TEST_CASE("what had ended before the gap began is not what the gap waited for") {
  const std::vector<OperationTime> times = {{0, 1}, {1, 2}, {1, 3}, {4, 5}, {1, 2}};
  const StepGaps gaps = step_gaps(example(), times);
  REQUIRE(gaps.waits.size() == 1);
  CHECK(gaps.waits[0].label == "the host");
  CHECK(gaps.waits[0].seconds == 1);
  CHECK(gaps.communication_s == 1);  // both at once
  CHECK(gaps.hidden_s == 1);
}

TEST_CASE("short gaps are summed without a name") {
  const std::vector<OperationTime> times = {{0, 1}, {1, 1.5}, {1.00001, 2}, {2.00001, 3}, {2, 3}};
  const StepGaps gaps = step_gaps(example(), times);
  CHECK(gaps.waits.empty());
  CHECK(gaps.all_s == doctest::Approx(2e-5));
}

}  // namespace shardplan
