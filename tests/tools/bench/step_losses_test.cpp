#include "tools/bench/step_losses.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace shardplan {
namespace {

// Attention behind a product and a gather, then the update.
Program example() {
  Program program;
  const auto add = [&](OpKind kind, Stream stream, const std::string& label) -> Operation& {
    program.operations.push_back({.kind = kind, .stream = stream, .label = label});
    return program.operations.back();
  };
  add(OpKind::kGemm, Stream::kCompute, "product").records = 0;
  Operation& gather = add(OpKind::kAllGather, Stream::kTensor, "gather");
  gather.waits = {0};
  gather.records = 1;
  add(OpKind::kAttentionForward, Stream::kCompute, "attention").waits = {1};
  add(OpKind::kAdamW, Stream::kCompute, "update");
  program.num_events = 2;
  return program;
}

const StepLoss& find(const std::vector<StepLoss>& losses, const std::string& kind) {
  const auto found = std::ranges::find(losses, kind, &StepLoss::kind);
  REQUIRE(found != losses.end());
  return *found;
}

}  // namespace

TEST_CASE("every second of a step is lost to a kind or is in its limit") {
  //                                        product  gather  attention  update
  const std::vector<OperationTime> times = {{0, 4}, {4, 6}, {6, 9}, {9.00001, 11}};
  const StepAccount limit = {.rows = {{.kind = "product", .visible_s = 3.5},
                                      {.kind = "attention", .visible_s = 3.25},
                                      {.kind = "tp communication", .visible_s = 0.5},
                                      {.kind = "optimizer", .visible_s = 1}},
                             .total_s = 8.25};
  const std::vector<StepLoss> losses = step_losses(example(), times, limit);
  double measured_s = 0;
  double limit_s = 0;
  for (const StepLoss& loss : losses) {
    measured_s += loss.measured_s;
    limit_s += loss.limit_s;
  }
  CHECK(measured_s == doctest::Approx(11));
  CHECK(limit_s == doctest::Approx(8.25));
  CHECK(losses.front().kind == "waiting for gather");
  CHECK(losses.front().lost_s() == 2);
  CHECK(find(losses, "product").lost_s() == 0.5);
  CHECK(find(losses, "attention").lost_s() == -0.25);  // faster than its best measured rate
  CHECK(find(losses, "optimizer").measured_s == doctest::Approx(2).epsilon(1e-4));
  CHECK(find(losses, "short gaps").measured_s == doctest::Approx(1e-5));
  CHECK(find(losses, "tp communication").lost_s() == -0.5);  // measured as waiting
}

}  // namespace shardplan
