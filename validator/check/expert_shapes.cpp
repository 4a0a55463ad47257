// Shapes of a mixture of experts' operations.
#include "validator/check/operation_check.h"

#include "validator/program/program.h"

namespace shardplan {

// Rows of the tokens and rows that the experts receive: in0 and out0, or the other way round.
void OperationCheck::check_exchange(const Operation& op) {
  const bool sends = op.kind == OpKind::kExpertDispatch;
  const View& tokens = sends ? op.in[0] : op.out[0];
  const View& received = sends ? op.out[0] : op.in[0];
  const View& scalars = sends ? op.out[1] : op.in[3];
  const View& choice_scalars = sends ? op.in[3] : op.out[1];
  const std::int64_t choices = op.in[1].cols;
  expect_shape(op.in[1], tokens.rows, choices);
  expect_shape(op.in[2], tokens.rows, choices);
  expect_shape(received, received.rows, tokens.cols);
  expect_shape(scalars, received.rows, 1);
  expect_shape(choice_scalars, tokens.rows, choices);
  expect(scalars.present() == choice_scalars.present(), op.in[1], "scalars on both sides");
  expect(op.attributes.experts > 0 && op.attributes.copies > 0 &&
             members(op) % op.attributes.copies == 0,
         op.in[1], "experts on runs of members");
}

void OperationCheck::check_router(const Operation& op) {
  const bool is_forward = op.kind == OpKind::kRouterForward;
  const View& scores = op.in[0];
  const View& choices = is_forward ? op.out[1] : op.in[1];
  const View& counts = is_forward ? op.out[3] : op.in[3];
  expect_shape(op.out[0], scores.rows, scores.cols);
  expect_shape(choices, scores.rows, choices.cols);
  expect_shape(is_forward ? op.out[2] : op.in[2], scores.rows, choices.cols);
  expect(op.attributes.sequence_rows > 0 &&
             op.attributes.first_row + scores.rows <= counts.rows * op.attributes.sequence_rows,
         counts, "one row for every sequence");
  expect(counts.cols == scores.cols && choices.cols <= scores.cols, counts,
         "one column for every expert");
}

void OperationCheck::check_rows_of_experts(const Operation& op) {
  const OpAttributes& a = op.attributes;
  const View& counts = op.in[1];
  expect_shape(op.out[0], op.in[0].rows, op.in[0].cols);
  expect_shape(op.out[1], 1, a.experts + 1);
  expect_shape(op.out[2], 1, 1);
  const std::int64_t members = a.experts > 0 ? counts.cols / a.experts * a.copies : 0;
  expect(members > 0 && counts.cols % a.experts == 0 && counts.rows % members == 0, counts,
         "the counts of all members");
  expect(a.member >= 0 && a.member < members, counts, "this member among the others");
}

void OperationCheck::check_grouped(const Operation& op) {
  const std::int64_t experts = op.in[2].cols - 1;
  if (op.kind == OpKind::kGroupedWeightGradient) {
    expect(op.in[0].rows == op.in[1].rows, op.in[1], "as many rows as the other factor");
    return expect_shape(op.out[0], experts * op.in[0].cols, op.in[1].cols);
  }
  const View& weight = op.in[1];
  const std::int64_t height = weight.rows / experts;
  expect(weight.rows % experts == 0, weight, "one matrix for every expert");
  expect((op.attributes.transpose_b ? weight.cols : height) == op.in[0].cols, weight,
         "the inner size of the product");
  expect_shape(op.out[0], op.in[0].rows, op.attributes.transpose_b ? height : weight.cols);
}

void OperationCheck::check_expert_swiglu(const Operation& op) {
  const bool is_forward = op.kind == OpKind::kExpertSwigluForward;
  const View& gate_up = is_forward ? op.in[0] : op.in[1];
  const View& activation = is_forward ? op.out[0] : op.in[0];
  expect_shape(activation, gate_up.rows, gate_up.cols / 2);
  expect_shape(is_forward ? op.in[1] : op.in[2], gate_up.rows, 1);
  if (!is_forward) {
    expect_shape(op.out[0], gate_up.rows, gate_up.cols);
    expect_shape(op.out[1], gate_up.rows, 1);
    expect_shape(op.out[2], gate_up.rows, gate_up.cols / 2);
  }
}

}  // namespace shardplan
