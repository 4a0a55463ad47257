#include "validator/host/ops.h"

#include <doctest/doctest.h>

#include <cmath>

namespace shardplan {
namespace {

HostView<double> matrix(std::vector<double>& values, std::int64_t first, std::int64_t rows,
                        std::int64_t cols, std::int64_t row_step) {
  return {
      .data = values.data() + first, .rows = rows, .cols = cols, .row_step = row_step, .step = 1};
}

std::vector<double> counted(std::int64_t size) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < size; ++i) { values.push_back(std::sqrt(static_cast<double>(i))); }
  return values;
}

}  // namespace

TEST_CASE("a copy of several pairs is a copy of each of them") {
  std::vector<double> from = counted(30);
  std::vector<double> to(16, -1);
  const OpAttributes attributes;
  // Two columns of rows 0 to 2, four of rows 3 and 4.
  run_on_host<double>(OpKind::kCopy,
                      {.attributes = attributes,
                       .in = {matrix(from, 1, 3, 2, 6), matrix(from, 3 * 6 + 2, 2, 4, 6)},
                       .out = {matrix(to, 9, 3, 2, 2), matrix(to, 0, 2, 4, 4)}});
  const std::vector<std::int64_t> want = {20, 21, 22, 23, 26, 27, 28, 29,
                                          -1, 1,  2,  7,  8,  13, 14, -1};
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(to[i] == (want[i] < 0 ? -1 : from[static_cast<std::size_t>(want[i])]));
  }
}

TEST_CASE("a rotation with a gap has the bits of one for each half of every sequence") {
  constexpr std::int64_t kSequences = 3, kChunk = 5, kWidth = 20;  // two heads of 8, and 4 columns
  const std::vector<double> before = counted(kSequences * 2 * kChunk * kWidth);
  for (const bool inverse : {false, true}) {
    OpAttributes attributes = {.inverse = inverse, .theta = 1e4, .heads = 2, .head_dim = 8};
    const auto rotate = [&](std::vector<double>& values, std::int64_t row, std::int64_t rows) {
      const HostView<double> view = matrix(values, row * kWidth, rows, kWidth, kWidth);
      run_on_host<double>(OpKind::kRope, {.attributes = attributes, .in = {view}, .out = {view}});
    };
    std::vector<double> at_once = before;
    attributes.batch = kSequences;
    attributes.query_position = 7;
    attributes.position_gap = 30;
    rotate(at_once, 0, kSequences * 2 * kChunk);
    std::vector<double> one_by_one = before;
    attributes.batch = 1;
    attributes.position_gap = 0;
    for (std::int64_t chunk = 0; chunk < 2 * kSequences; ++chunk) {
      attributes.query_position = chunk % 2 == 0 ? 7 : 7 + kChunk + 30;
      rotate(one_by_one, chunk * kChunk, kChunk);
    }
    CHECK(at_once == one_by_one);
    CHECK(at_once != before);
  }
}

}  // namespace shardplan
