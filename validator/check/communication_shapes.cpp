// Shapes of operations that communicate, and of what they leave.
#include "validator/check/operation_check.h"

#include <algorithm>

#include "validator/program/program.h"

namespace shardplan {

void OperationCheck::check_collective(const Operation& op) {
  for (const std::vector<View>* views : {&op.in, &op.out}) {
    for (const View& view : *views) {
      if (view.present()) {
        expect(view.contiguous(), view, "a contiguous view");
      }
    }
  }
  const std::int64_t count = members(op);
  const bool is_split = op.kind == OpKind::kReduceScatter;
  const std::vector<View>& whole = is_split ? op.in : op.out;
  const std::vector<View>& part = is_split ? op.out : op.in;
  if (op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter) {
    std::int64_t elements = 0;
    for (const View& view : whole) { elements += view.elements(); }
    expect(elements == count * part[0].elements(), part[0], "one member's part");
  } else if (op.kind == OpKind::kAllReduce || op.kind == OpKind::kRingShift) {
    expect(op.in[0].elements() == op.out[0].elements(), op.out[0], "the input's size");
  }
  if (op.kind == OpKind::kRingShift) {
    expect(are_apart(op.in[0], op.out[0]), op.out[0], "a buffer of its own");
  }
  if (op.kind == OpKind::kExchange) {
    check_exchanged_parts(op);
  }
}

// Parts are of one size, whichever member they are of, and arrive where nothing else lies.
void OperationCheck::check_exchanged_parts(const Operation& op) {
  const View& first = op.in[0];
  const bool is_by_member = op.in.size() > 1;
  expect(is_by_member || first.elements() % members(op) == 0, first, "one part for every member");
  for (const View& in : op.in) {
    expect(in.elements() == first.elements(), in, "the size of the other inputs");
    expect_type(in, first);
  }
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    const View& out = op.out[i];
    expect(out.elements() == first.elements(), out, "the input's size");
    expect_type(out, first);
    const auto is_apart = [&](const View& other) { return are_apart(out, other); };
    expect(
        std::ranges::all_of(op.in, is_apart) &&
            std::all_of(op.out.begin(), op.out.begin() + static_cast<std::ptrdiff_t>(i), is_apart),
        out, "a buffer of its own");
  }
  const std::int64_t self = index_in_group(program_, op);
  if (self == members(op)) {
    return expect(false, first, "a group that has this rank");
  }
  const std::int64_t part = is_by_member ? first.elements() : first.elements() / members(op);
  Arrival arrival{.tensor = op.out[0].tensor,
                  .begin = op.out[0].offset,
                  .end = op.out[0].end(),
                  .own = is_by_member ? op.out[static_cast<std::size_t>(self)].offset
                                      : op.out[0].offset + self * part,
                  .part = part};
  for (const View& out : op.out) {
    arrival.begin = std::min(arrival.begin, out.offset);
    arrival.end = std::max(arrival.end, out.end());
  }
  arrivals_.push_back(arrival);
}

// Which part of in0 is this member's, as the last exchange has left them there; -1: none has.
std::int64_t OperationCheck::own_part(const Operation& sum) const {
  const View& parts = sum.in[0];
  for (auto last = arrivals_.rbegin(); last != arrivals_.rend(); ++last) {
    if (last->tensor == parts.tensor && last->begin == parts.offset && last->end == parts.end() &&
        last->part == sum.in[1].elements()) {
      return (last->own - last->begin) / last->part;
    }
  }
  return -1;
}

void OperationCheck::check_sum_of_parts(const Operation& op) {
  const View& parts = op.in[0];
  const View& own = op.in[1];
  const View& sum = op.out[0];
  for (const View& view : {parts, own}) {
    expect(view.contiguous(), view, "a contiguous view");
    expect_type(view, sum);
  }
  expect(sum.elements() == own.elements(), sum, "the size of this member's own part");
  expect(sum.contiguous() || (sum.rows == own.rows && sum.cols == own.cols), sum,
         "a contiguous view, or the shape of this member's own part");
  if (parts.elements() != members(op) * own.elements()) {
    return expect(false, parts, "one part for every member");
  }
  const std::int64_t number = own_part(op);
  if (number < 0 || op.attributes.member != number) {
    return expect(false, parts,
                  "part " + std::to_string(op.attributes.member) +
                      " left to this member by an exchange, found " + std::to_string(number));
  }
  const bool is_in_place = sum.tensor == own.tensor && sum.offset == own.offset && sum.contiguous();
  expect(is_in_place || are_apart(sum, own), sum,
         "this member's own part in place, or a buffer of its own");
  for (const View& part : read_views(program_, op, 0)) {
    expect(are_apart(sum, part), sum, "none of the others' parts");
  }
}

}  // namespace shardplan
