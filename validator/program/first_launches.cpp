#include "validator/program/first_launches.h"

#include <set>

namespace shardplan {

std::vector<std::int64_t> first_launches(const Program& program) {
  std::set<std::vector<std::int64_t>> seen;
  std::vector<std::int64_t> launches;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& op = program.operations[i];
    if (is_communication(op.kind)) {
      continue;
    }
    const OpAttributes& a = op.attributes;
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(op.kind),
                                       a.accumulate,
                                       a.transpose_a,
                                       a.transpose_b,
                                       a.fp8.has_value(),
                                       a.fp8_keeps,
                                       static_cast<std::int64_t>(a.fp8_finds),
                                       a.window,
                                       a.query_position,
                                       a.key_position};
    for (const auto* views : {&op.in, &op.out}) {
      for (const View& view : *views) {
        const auto dtype = view.present()
                               ? static_cast<std::int64_t>(
                                     program.tensors[static_cast<std::size_t>(view.tensor)].dtype)
                               : -1;
        shape.insert(shape.end(), {dtype, view.rows, view.cols, view.stride});
      }
    }
    if (seen.insert(shape).second) {
      launches.push_back(static_cast<std::int64_t>(i));
    }
  }
  return launches;
}

}  // namespace shardplan
