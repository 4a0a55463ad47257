// Checks of single operations: arguments, views, shapes, groups and events.
#include "validator/check/operations.h"

#include <algorithm>
#include <array>

#include "validator/check/checks.h"

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

bool are_apart(const View& a, const View& b) {
  return a.tensor != b.tensor || a.end() <= b.offset || b.end() <= a.offset;
}

class OperationCheck {
 public:
  explicit OperationCheck(const Program& program)
      : program_(program), recorded_(static_cast<std::size_t>(program.num_events), false) {}

  Problems run() {
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

 private:
  void report(const std::string& what) {
    problems_.push_back(place_of(program_, index_) + " " + what);
  }
  const Tensor& tensor(const View& view) const {
    return program_.tensors[static_cast<std::size_t>(view.tensor)];
  }
  std::string named(const View& view) const {
    return "tensor " + std::to_string(view.tensor) + " '" + tensor(view).name + "'";
  }
  std::int64_t members(const Operation& op) const {
    return static_cast<std::int64_t>(
        program_.groups[static_cast<std::size_t>(op.group)].ranks.size());
  }

  void check_group(const Operation& op) {
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

  void check_arguments(const Operation& op) {
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

  void check_views(const std::vector<View>& views, std::int64_t expected, std::int64_t optional,
                   const std::string& what) {
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

  void check_view(const View& view) {
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

  void expect(bool holds, const View& view, const std::string& expected) {
    if (!holds) {
      report("has " + named(view) + " [" + std::to_string(view.rows) + ", " +
             std::to_string(view.cols) + "], expected " + expected);
    }
  }

  void expect_type(const View& view, const View& like) {
    expect(tensor(view).dtype == tensor(like).dtype, view,
           std::string(name_of(tensor(like).dtype)));
  }

  // All products in fp8 round into the same memory, one after the other. What one finds, the one
  // before it has rounded of the same factor to the same format, and nothing has written to that
  // since.
  void check_fp8(const Operation& op) {
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

  void expect_found(bool holds, const View& view) {
    expect(holds, view, "what the product in fp8 before it has left rounded");
  }

  // The pairs of a copy of several are copied in any order.
  void check_copy(const Operation& op) {
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

  void check_rotation(const Operation& op) {
    const OpAttributes& a = op.attributes;
    const View& rows = op.in[0];
    expect(rows.rows == op.out[0].rows && rows.cols == op.out[0].cols, op.out[0],
           "the input's shape");
    expect(a.batch > 0 && rows.rows % a.batch == 0, rows, "sequences of one length");
    expect(a.query_position >= 0 && a.position_gap >= 0, rows, "positions from 0 on, ascending");
    expect(a.position_gap == 0 || rows.rows % (2 * a.batch) == 0, rows,
           "an even number of rows of each sequence");
  }

  void check_gemm(const Operation& op) {
    const View& a = op.in[0];
    const View& b = op.in[1];
    const std::int64_t m = op.attributes.transpose_a ? a.cols : a.rows;
    const std::int64_t k = op.attributes.transpose_a ? a.rows : a.cols;
    const std::int64_t n = op.attributes.transpose_b ? b.rows : b.cols;
    expect((op.attributes.transpose_b ? b.cols : b.rows) == k, b, "the inner size of the product");
    expect(op.out[0].rows == m && op.out[0].cols == n, op.out[0], "the product's shape");
  }

  void check_collective(const Operation& op) {
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

  // Where the parts of an exchange lie, elements of a tensor.
  struct Arrival {
    std::int64_t tensor = -1;
    std::int64_t begin = 0;  // of the first one
    std::int64_t end = 0;    // of the last one
    std::int64_t own = 0;    // begin of this member's own, which is not written
    std::int64_t part = 0;   // elements of one
  };

  // Parts are of one size, whichever member they are of, and arrive where nothing else lies.
  void check_exchanged_parts(const Operation& op) {
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
      expect(std::ranges::all_of(op.in, is_apart) &&
                 std::all_of(op.out.begin(), op.out.begin() + static_cast<std::ptrdiff_t>(i),
                             is_apart),
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
  std::int64_t own_part(const Operation& sum) const {
    const View& parts = sum.in[0];
    for (auto last = arrivals_.rbegin(); last != arrivals_.rend(); ++last) {
      if (last->tensor == parts.tensor && last->begin == parts.offset && last->end == parts.end() &&
          last->part == sum.in[1].elements()) {
        return (last->own - last->begin) / last->part;
      }
    }
    return -1;
  }

  void check_sum_of_parts(const Operation& op) {
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
    const bool is_in_place =
        sum.tensor == own.tensor && sum.offset == own.offset && sum.contiguous();
    expect(is_in_place || are_apart(sum, own), sum,
           "this member's own part in place, or a buffer of its own");
    for (const View& part : read_views(program_, op, 0)) {
      expect(are_apart(sum, part), sum, "none of the others' parts");
    }
  }

  void check_attention(const Operation& op) {
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

  void expect_shape(const View& view, std::int64_t rows, std::int64_t cols) {
    if (view.present()) {
      expect(view.rows == rows && view.cols == cols, view,
             std::to_string(rows) + " rows of " + std::to_string(cols));
    }
  }

  // Rows of the tokens and rows that the experts receive: in0 and out0, or the other way round.
  void check_exchange(const Operation& op) {
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

  void check_router(const Operation& op) {
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

  void check_rows_of_experts(const Operation& op) {
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

  void check_grouped(const Operation& op) {
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

  void check_expert_swiglu(const Operation& op) {
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

  void check_shapes(const Operation& op) {
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
  void check_events(const Operation& op) {
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

  const Program& program_;
  std::vector<bool> recorded_;
  std::int64_t index_ = 0;
  std::vector<Arrival> arrivals_;
  const Operation* fp8_columns_ = nullptr;  // whose in0 is rounded by columns
  const Operation* fp8_weight_ = nullptr;   // whose in1 is rounded
  Problems problems_;
};

}  // namespace

Problems operation_problems(const Program& program) {
  return OperationCheck(program).run();
}

}  // namespace shardplan
