// Prefetch: where the gathers of the data stream stand in the list of operations.
#include "validator/program/start_gathers_early.h"

#include <algorithm>

#include "validator/program/builder.h"

namespace shardplan {
namespace {

bool is_gather(const Operation& op) {
  return op.kind == OpKind::kAllGather && op.stream == Stream::kData;
}

// Whole tensors: a tensor that takes the place of another must not begin while that is in use.
bool overlap(const Program& program, const View& a, const View& b) {
  if (!a.present() || !b.present()) {
    return false;
  }
  const Tensor& first = program.tensors[static_cast<std::size_t>(a.tensor)];
  const Tensor& second = program.tensors[static_cast<std::size_t>(b.tensor)];
  return first.arena == second.arena && first.offset < second.offset + second.bytes &&
         second.offset < first.offset + first.bytes;
}

bool any_overlap(const Program& program, const std::vector<View>& a, const std::vector<View>& b) {
  return std::ranges::any_of(a, [&](const View& x) {
    return std::ranges::any_of(b, [&](const View& y) { return overlap(program, x, y); });
  });
}

bool must_stay_behind(const Program& program, const Operation& gather, const Operation& earlier) {
  return is_gather(earlier) || any_overlap(program, gather.out, earlier.in) ||
         any_overlap(program, gather.out, earlier.out) ||
         any_overlap(program, gather.in, earlier.out);
}

}  // namespace

void start_gathers_early(Program& program) {
  std::vector<Operation>& operations = program.operations;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!is_gather(operations[i])) {
      continue;
    }
    std::size_t to = i;
    while (to > 0 && !must_stay_behind(program, operations[i], operations[to - 1])) { --to; }
    const auto first = operations.begin() + static_cast<std::ptrdiff_t>(to);
    const auto gather = operations.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(first, gather, gather + 1);
    for (CutPoint& cut : program.cuts) {
      const auto at = static_cast<std::size_t>(cut.operation);
      cut.operation += to < at && at <= i ? 1 : 0;
    }
  }
}

}  // namespace shardplan
