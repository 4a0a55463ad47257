#include "tests/validator/exchanged_sums.h"

#include <algorithm>

#include "validator/program_builder.h"

namespace shardplan {
namespace {

bool is_replaced(const Program& program, const Operation& op) {
  return op.kind == OpKind::kReduceScatter && op.in.size() == 1 &&
         program.groups[static_cast<std::size_t>(op.group)].kind == GroupKind::kTp;
}

// Adds the pair to the program; what it exchanges lies at byte `offset`.
void add_pair(Program& program, const Operation& scatter, std::int64_t offset) {
  const Tensor& partial = program.tensors[static_cast<std::size_t>(scatter.in[0].tensor)];
  const std::int64_t rows = scatter.in[0].rows;
  const std::int64_t cols = scatter.in[0].cols;
  const auto& ranks = program.groups[static_cast<std::size_t>(scatter.group)].ranks;
  const std::int64_t member = std::ranges::find(ranks, program.rank) - ranks.begin();
  const auto at = std::ssize(program.operations);
  const View parts = {
      .tensor = std::ssize(program.tensors), .rows = rows, .cols = cols, .stride = cols};
  View own = scatter.out[0];
  own.tensor = scatter.in[0].tensor;
  own.offset = scatter.in[0].offset + member * own.elements();
  program.tensors.push_back(
      {.component = Component::kCommunication,
       .name = "exchanged",
       .dtype = partial.dtype,
       .rows = rows,
       .cols = cols,
       .bytes = round_up(rows * cols * bytes_of(partial.dtype), kTensorAlignment),
       .arena = Arena::kDynamic,
       .offset = offset,
       .born = at,
       .dies = at + 1});
  Operation exchange = scatter;
  exchange.kind = OpKind::kExchange;
  exchange.out = {parts};
  Operation sum = scatter;
  sum.kind = OpKind::kSumParts;
  sum.in = {parts, own};
  sum.attributes.member = member;
  sum.stream = Stream::kCompute;
  program.operations.push_back(std::move(exchange));
  program.operations.push_back(std::move(sum));
}

}  // namespace

Program with_exchanged_sums(const Program& program) {
  Program changed = program;
  changed.operations.clear();
  std::vector<std::int64_t> first;  // by operation: of what stands for it now
  std::vector<std::int64_t> last;
  for (const Operation& op : program.operations) {
    first.push_back(std::ssize(changed.operations));
    if (is_replaced(program, op)) {
      add_pair(changed, op, program.dynamic_bytes);
    } else {
      changed.operations.push_back(op);
    }
    last.push_back(std::ssize(changed.operations) - 1);
  }
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    changed.tensors[i].born = first[static_cast<std::size_t>(program.tensors[i].born)];
    changed.tensors[i].dies = last[static_cast<std::size_t>(program.tensors[i].dies)];
  }
  for (CutPoint& cut : changed.cuts) {
    cut.operation = first[static_cast<std::size_t>(cut.operation)];
  }
  for (const Tensor& tensor : changed.tensors) {
    if (tensor.arena == Arena::kDynamic) {
      changed.dynamic_bytes =
          std::max(changed.dynamic_bytes, round_up(tensor.offset + tensor.bytes, kArenaMultiple));
    }
  }
  for (Operation& op : changed.operations) {
    op.waits.clear();
    op.records = -1;
  }
  order_streams(changed);
  return changed;
}

}  // namespace shardplan
