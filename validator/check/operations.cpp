// What holds of all operations: groups, arguments, views, events, and shapes of those without a
// file of their own.
#include "validator/check/operations.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "validator/check/operation_check.h"
#include "validator/program/program.h"

namespace shardplan {
namespace {

// How many inputs and outputs an operation has; optional ones may be absent or missing.
struct Arity {
  OpKind kind;
  std::int64_t in;
  std::int64_t out;
  std::int64_t optional_in = -1;   // index of the input that may be absent
  std::int64_t optional_out = -1;  // and of the output
};

constexpr std::array<Arity, kNumOpKinds> kArities = {{
    {.kind = OpKind::kFill, .in = 0, .out = 1},
    {.kind = OpKind::kCopy, .in = 1, .out = 1},  // or any number of pairs
    {.kind = OpKind::kAdd, .in = 2, .out = 1},
    {.kind = OpKind::kSumParts, .in = 2, .out = 1},
    {.kind = OpKind::kEmbeddingForward, .in = 2, .out = 1},
    {.kind = OpKind::kEmbeddingBackward, .in = 2, .out = 1},
    {.kind = OpKind::kRmsNormForward, .in = 2, .out = 2, .optional_out = 1},
    {.kind = OpKind::kAddRmsNormForward, .in = 3, .out = 3},
    {.kind = OpKind::kRmsNormBackward, .in = 5, .out = 2, .optional_in = 4},
    {.kind = OpKind::kGemm, .in = 2, .out = 1},
    {.kind = OpKind::kRope, .in = 1, .out = 1},
    {.kind = OpKind::kAttentionForward, .in = 3, .out = 2},
    {.kind = OpKind::kAttentionBackward, .in = 6, .out = 4},
    {.kind = OpKind::kLseMerge, .in = 2, .out = 2},
    {.kind = OpKind::kSwigluForward, .in = 1, .out = 1},
    {.kind = OpKind::kSwigluBackward, .in = 2, .out = 2, .optional_out = 1},
    {.kind = OpKind::kRouterForward, .in = 1, .out = 4},
    {.kind = OpKind::kExpertRows, .in = 2, .out = 3},
    {.kind = OpKind::kExpertDispatch, .in = 4, .out = 2, .optional_in = 3, .optional_out = 1},
    {.kind = OpKind::kExpertCombine, .in = 4, .out = 2, .optional_in = 3, .optional_out = 1},
    {.kind = OpKind::kGroupedGemm, .in = 3, .out = 1},
    {.kind = OpKind::kGroupedWeightGradient, .in = 3, .out = 1},
    {.kind = OpKind::kExpertSwigluForward, .in = 3, .out = 1},
    {.kind = OpKind::kExpertSwigluBackward, .in = 4, .out = 3, .optional_out = 2},
    {.kind = OpKind::kRouterBackward, .in = 4, .out = 2},
    {.kind = OpKind::kLossStatistics, .in = 2, .out = 1},
    {.kind = OpKind::kLossCombine, .in = 1, .out = 2},
    {.kind = OpKind::kLossGradient, .in = 3, .out = 1},
    {.kind = OpKind::kAllGather, .in = 1, .out = 1},      // or one output per member
    {.kind = OpKind::kReduceScatter, .in = 1, .out = 1},  // or one input per member
    {.kind = OpKind::kExchange, .in = 1, .out = 1},       // or one of both per member
    {.kind = OpKind::kAllReduce, .in = 1, .out = 1},
    {.kind = OpKind::kRingShift, .in = 1, .out = 1},
    {.kind = OpKind::kSend, .in = 1, .out = 0},
    {.kind = OpKind::kReceive, .in = 0, .out = 1},
    {.kind = OpKind::kSquaredNorm, .in = 1, .out = 1},
    {.kind = OpKind::kClipFactor, .in = 1, .out = 1},
    {.kind = OpKind::kAdamW, .in = 3, .out = 4},
}};

const Arity& arity_of(OpKind kind) {
  return *std::ranges::find(kArities, kind, &Arity::kind);
}

}  // namespace

bool are_apart(const View& a, const View& b) {
  return a.tensor != b.tensor || a.end() <= b.offset || b.end() <= a.offset;
}

Problems OperationCheck::run() {
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    index_ = static_cast<std::int64_t>(i);
    const Operation& op = program_.operations[i];
    const std::size_t before = problems_.size();
    check_group(op);
    if (problems_.size() == before) {
      check_arguments(op);
    }
    if (problems_.size() == before) {
      check_shapes(op);
      check_fp8(op);
    }
    check_events(op);
  }
  return std::move(problems_);
}

std::int64_t OperationCheck::members(const Operation& op) const {
  return static_cast<std::int64_t>(
      program_.groups[static_cast<std::size_t>(op.group)].ranks.size());
}

void OperationCheck::check_group(const Operation& op) {
  const auto num_groups = static_cast<std::int64_t>(program_.groups.size());
  if (has_group(op.kind) != (op.group >= 0) || op.group >= num_groups) {
    report("has group " + std::to_string(op.group) + " of " + std::to_string(num_groups));
    return;
  }
  if (op.kind != OpKind::kSend && op.kind != OpKind::kReceive) {
    return;
  }
  const std::int64_t peer = op.attributes.peer;
  if (peer < 0 || peer >= members(op) ||
      program_.groups[static_cast<std::size_t>(op.group)].ranks[static_cast<std::size_t>(peer)] ==
          program_.rank) {
    report("has peer " + std::to_string(peer) + ", expected another member of its group");
  }
}

void OperationCheck::check_arguments(const Operation& op) {
  const Arity& arity = arity_of(op.kind);
  const bool scatters = op.kind == OpKind::kReduceScatter && op.in.size() > 1;
  const bool gathers = op.kind == OpKind::kAllGather && op.out.size() > 1;
  const bool exchanges = op.kind == OpKind::kExchange && op.in.size() + op.out.size() > 2;
  const std::int64_t more_pairs =
      op.kind == OpKind::kCopy && op.out.size() > 1 ? std::ssize(op.out) - 1 : 0;
  check_views(op.in, (scatters || exchanges ? members(op) : arity.in) + more_pairs,
              arity.optional_in, "inputs");
  check_views(op.out, (gathers || exchanges ? members(op) : arity.out) + more_pairs,
              arity.optional_out, "outputs");
}

void OperationCheck::check_views(const std::vector<View>& views, std::int64_t expected,
                                 std::int64_t optional, const std::string& what) {
  if (static_cast<std::int64_t>(views.size()) != expected) {
    report("has " + std::to_string(views.size()) + " " + what + ", expected " +
           std::to_string(expected));
    return;
  }
  for (std::int64_t i = 0; i < expected; ++i) {
    const View& view = views[static_cast<std::size_t>(i)];
    if (view.present()) {
      check_view(view);
    } else if (i != optional) {
      report("lacks number " + std::to_string(i) + " of its " + what);
    }
  }
}

void OperationCheck::check_view(const View& view) {
  if (view.tensor >= static_cast<std::int64_t>(program_.tensors.size())) {
    report("names tensor " + std::to_string(view.tensor) + ", which does not exist");
    return;
  }
  const Tensor& row = tensor(view);
  if (view.offset < 0 || view.rows < 1 || view.cols < 1 || view.end() > row.elements()) {
    report("reaches beyond " + named(view));
  } else if (!view.contiguous() &&
             (view.stride != row.cols || view.offset % row.cols + view.cols > row.cols)) {
    report("has a view of " + named(view) + " that is no rectangle of its rows");
  }
  if (index_ < row.born || index_ > row.dies) {
    report("uses " + named(view) + ", which is alive from operation " + std::to_string(row.born) +
           " to " + std::to_string(row.dies));
  }
}

void OperationCheck::expect(bool holds, const View& view, const std::string& expected) {
  if (!holds) {
    report("has " + named(view) + " [" + std::to_string(view.rows) + ", " +
           std::to_string(view.cols) + "], expected " + expected);
  }
}

void OperationCheck::expect_type(const View& view, const View& like) {
  expect(tensor(view).dtype == tensor(like).dtype, view, std::string(name_of(tensor(like).dtype)));
}

// All products in fp8 round into the same memory, one after the other. What one finds, the one
// before it has rounded of the same factor to the same format, and nothing has written to that
// since.
void OperationCheck::check_fp8(const Operation& op) {
  const OpAttributes& a = op.attributes;
  if (a.fp8) {
    if (op.stream != Stream::kCompute) {
      report("multiplies in fp8 on stream " + std::string(name_of(op.stream)) +
             ", expected compute");
    }
    if (a.fp8_finds == Fp8Found::kColumns) {
      const Operation* const left = fp8_columns_;
      expect_found(
          left != nullptr && left->in[0] == op.in[0] && left->attributes.fp8->a == a.fp8->a,
          op.in[0]);
    }
    if (a.fp8_finds == Fp8Found::kWeight) {
      const Operation* const left = fp8_weight_;
      expect_found(left != nullptr && left->in[1] == op.in[1] &&
                       left->attributes.fp8->b == a.fp8->b &&
                       left->attributes.transpose_b == a.transpose_b,
                   op.in[1]);
    }
    fp8_columns_ = a.fp8_keeps ? &op : nullptr;
    fp8_weight_ = &op;
  }
  for (const View& out : op.out) {
    if (fp8_columns_ != nullptr && out.tensor == fp8_columns_->in[0].tensor) {
      fp8_columns_ = nullptr;
    }
    if (fp8_weight_ != nullptr && out.tensor == fp8_weight_->in[1].tensor) {
      fp8_weight_ = nullptr;
    }
  }
}

// The pairs of a copy of several are copied in any order.
void OperationCheck::check_copy(const Operation& op) {
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    const View& to = op.out[i];
    expect(op.in[i].rows == to.rows && op.in[i].cols == to.cols, to, "the input's shape");
    if (op.out.size() > 1) {
      const auto is_apart = [&](const View& view) { return &view == &to || are_apart(view, to); };
      expect(std::ranges::all_of(op.in, is_apart) && std::ranges::all_of(op.out, is_apart), to,
             "a buffer apart from all others");
    }
  }
}

void OperationCheck::check_rotation(const Operation& op) {
  const OpAttributes& a = op.attributes;
  const View& rows = op.in[0];
  expect(rows.rows == op.out[0].rows && rows.cols == op.out[0].cols, op.out[0],
         "the input's shape");
  expect(a.batch > 0 && rows.rows % a.batch == 0, rows, "sequences of one length");
  expect(a.query_position >= 0 && a.position_gap >= 0, rows, "positions from 0 on, ascending");
  expect(a.position_gap == 0 || rows.rows % (2 * a.batch) == 0, rows,
         "an even number of rows of each sequence");
}

void OperationCheck::check_gemm(const Operation& op) {
  const View& a = op.in[0];
  const View& b = op.in[1];
  const std::int64_t m = op.attributes.transpose_a ? a.cols : a.rows;
  const std::int64_t k = op.attributes.transpose_a ? a.rows : a.cols;
  const std::int64_t n = op.attributes.transpose_b ? b.rows : b.cols;
  expect((op.attributes.transpose_b ? b.cols : b.rows) == k, b, "the inner size of the product");
  expect(op.out[0].rows == m && op.out[0].cols == n, op.out[0], "the product's shape");
}

void OperationCheck::check_attention(const Operation& op) {
  const OpAttributes& a = op.attributes;
  const std::size_t query = op.kind == OpKind::kAttentionForward ? 0 : 1;
  expect(op.in[query].cols == a.heads * a.head_dim, op.in[query], "heads * head_dim columns");
  for (const std::size_t i : {query + 1, query + 2}) {
    expect(op.in[i].cols == a.kv_heads * a.head_dim, op.in[i], "kv_heads * head_dim columns");
    const std::int64_t end = a.key_position + op.in[i].rows / a.batch;
    const std::int64_t end_query = a.query_position + op.in[query].rows / a.batch;
    expect(end >= end_query || end <= a.query_position, op.in[i],
           "rows up to the last query's position, or none beyond the first query");
    expect(a.window == 0 || end_query - a.window < end, op.in[i],
           "rows within the last query's window");
  }
}

void OperationCheck::expect_shape(const View& view, std::int64_t rows, std::int64_t cols) {
  if (view.present()) {
    expect(view.rows == rows && view.cols == cols, view,
           std::to_string(rows) + " rows of " + std::to_string(cols));
  }
}

void OperationCheck::check_shapes(const Operation& op) {
  if (is_communication(op.kind)) {
    check_collective(op);
  }
  switch (op.kind) {
    case OpKind::kGemm: return check_gemm(op);
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward: return check_attention(op);
    case OpKind::kCopy: return check_copy(op);
    case OpKind::kRope: return check_rotation(op);
    case OpKind::kAdd:
    case OpKind::kLossGradient:
    case OpKind::kRmsNormForward:
    case OpKind::kAddRmsNormForward:
    case OpKind::kRmsNormBackward:
      return expect(op.in[0].rows == op.out[0].rows && op.in[0].cols == op.out[0].cols, op.out[0],
                    "the input's shape");
    case OpKind::kSumParts: return check_sum_of_parts(op);
    case OpKind::kLseMerge:
      for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
        expect(op.in[i].rows == op.out[i].rows && op.in[i].cols == op.out[i].cols, op.out[i],
               "the shape of the part that it takes in");
      }
      return;
    case OpKind::kSwigluForward:
      return expect(op.in[0].rows == op.out[0].rows && op.in[0].cols == 2 * op.out[0].cols,
                    op.out[0], "half the input's columns");
    case OpKind::kSwigluBackward:
      return expect(op.in[1].rows == op.out[0].rows && op.in[1].cols == op.out[0].cols, op.out[0],
                    "the shape of gate and up");
    case OpKind::kExpertDispatch:
    case OpKind::kExpertCombine: return check_exchange(op);
    case OpKind::kRouterForward:
    case OpKind::kRouterBackward: return check_router(op);
    case OpKind::kExpertRows: return check_rows_of_experts(op);
    case OpKind::kGroupedGemm:
    case OpKind::kGroupedWeightGradient: return check_grouped(op);
    case OpKind::kExpertSwigluForward:
    case OpKind::kExpertSwigluBackward: return check_expert_swiglu(op);
    case OpKind::kClipFactor:
      return expect(op.out[0].elements() == 2, op.out[0], "room for factor and norm");
    case OpKind::kAdamW:
      for (const View& view : op.out) {
        expect(view.elements() == op.in[0].elements(), view, "the gradient's size");
      }
      return;
    default: return;
  }
}

// Events are recorded once, and before anyone waits for them.
void OperationCheck::check_events(const Operation& op) {
  for (const std::int64_t event : op.waits) {
    if (event < 0 || event >= program_.num_events) {
      report("waits for event " + std::to_string(event) + " of " +
             std::to_string(program_.num_events));
    } else if (!recorded_[static_cast<std::size_t>(event)]) {
      report("waits for event " + std::to_string(event) + ", which nothing has recorded before");
    }
  }
  if (op.records >= program_.num_events) {
    report("records event " + std::to_string(op.records) + " of " +
           std::to_string(program_.num_events));
  } else if (op.records >= 0) {
    if (recorded_[static_cast<std::size_t>(op.records)]) {
      report("records event " + std::to_string(op.records) + " again");
    }
    recorded_[static_cast<std::size_t>(op.records)] = true;
  }
}

Problems operation_problems(const Program& program) {
  return OperationCheck(program).run();
}

}  // namespace shardplan
