#include "validator/program/first_launches.h"

#include <doctest/doctest.h>

#include <set>
#include <tuple>

#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

// Of one product: transpositions, sum, and the sizes of both factors.
using Product =
    std::tuple<bool, bool, bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

Product product_of(const Operation& op) {
  return {op.attributes.transpose_a,
          op.attributes.transpose_b,
          op.attributes.accumulate,
          op.in[0].rows,
          op.in[0].cols,
          op.in[1].rows,
          op.in[1].cols};
}

}  // namespace

// The packed weight of q, k and v is square here: its forward product and that of the input's
// gradient have the same sizes.
TEST_CASE("every product of a step has been launched before, as it is transposed and added") {
  for (const std::int64_t tp : {1, 2}) {
    const Job job = tiny_job(tiny_model(), tp);
    const Program program = lower(job, {.tp = tp}, 0, {});
    std::set<Product> wanted;
    std::set<std::pair<bool, bool>> square;
    for (const Operation& op : program.operations) {
      if (op.kind == OpKind::kGemm) {
        wanted.insert(product_of(op));
        if (op.label.ends_with("attention.qkv") && op.in[1].rows == op.in[1].cols) {
          square.insert({op.attributes.transpose_a, op.attributes.transpose_b});
        }
      }
    }
    std::set<Product> launched;
    for (const std::int64_t i : first_launches(program)) {
      const Operation& op = program.operations[static_cast<std::size_t>(i)];
      CHECK(!is_communication(op.kind));
      if (op.kind == OpKind::kGemm) {
        launched.insert(product_of(op));
      }
    }
    CHECK(launched == wanted);
    CHECK(square.empty() == (tp == 1));
  }
}

TEST_CASE("an operation that was launched is not launched again") {
  const Program program = lower(tiny_job(tiny_model(), 1), {}, 0, {});
  CHECK(first_launches(program).size() < program.operations.size() / 4);
}

}  // namespace shardplan
