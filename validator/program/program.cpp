#include "validator/program/program.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <stdexcept>

namespace shardplan {
namespace {

constexpr std::array<std::string_view, kNumOpKinds> kOpNames = {
    "fill",
    "copy",
    "add",
    "sum_parts",
    "embedding_forward",
    "embedding_backward",
    "rms_norm_forward",
    "add_rms_norm_forward",
    "rms_norm_backward",
    "gemm",
    "rope",
    "attention_forward",
    "attention_backward",
    "lse_merge",
    "swiglu_forward",
    "swiglu_backward",
    "router_forward",
    "expert_rows",
    "expert_dispatch",
    "expert_combine",
    "grouped_gemm",
    "grouped_weight_gradient",
    "expert_swiglu_forward",
    "expert_swiglu_backward",
    "router_backward",
    "loss_statistics",
    "loss_combine",
    "loss_gradient",
    "all_gather",
    "reduce_scatter",
    "exchange",
    "all_reduce",
    "ring_shift",
    "send",
    "receive",
    "squared_norm",
    "clip_factor",
    "adamw",
};
constexpr std::array<std::string_view, kNumStreams> kStreamNames = {
    "compute", "tensor", "context", "experts", "data", "send", "receive"};

const std::vector<std::int64_t>& members_of(const Program& program, const Operation& operation) {
  return program.groups.at(static_cast<std::size_t>(operation.group)).ranks;
}

// A contiguous view of `count` equal parts without part `index`.
std::vector<View> without_part(const View& view, std::int64_t index, std::int64_t count) {
  const std::int64_t part = view.elements() / count;
  const std::int64_t own = index * part;
  std::vector<View> others;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) {
      others.push_back({.tensor = view.tensor,
                        .offset = view.offset + begin,
                        .rows = 1,
                        .cols = end - begin,
                        .stride = end - begin});
    }
  };
  add(0, own);
  add(own + part, view.elements());
  return others;
}

// What is the others' of views[index] of an exchange: a part of every member, or one member's.
std::vector<View> others_parts(const Program& program, const Operation& operation,
                               const std::vector<View>& views, std::int64_t index) {
  const std::int64_t own = index_in_group(program, operation);
  if (views.size() > 1) {
    return index == own ? std::vector<View>{} : std::vector{views[static_cast<std::size_t>(index)]};
  }
  return without_part(views[0], own, std::ssize(members_of(program, operation)));
}

}  // namespace

View rows_of(const View& view, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0 || first + count > view.rows) {
    throw std::logic_error("rows_of: rows outside the view");
  }
  View part = view;
  part.offset += first * view.stride;
  part.rows = count;
  return part;
}

View columns_of(const View& view, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0 || first + count > view.cols) {
    throw std::logic_error("columns_of: columns outside the view");
  }
  View part = view;
  part.offset += first;
  part.cols = count;
  return part;
}

std::string_view name_of(OpKind kind) {
  return kOpNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Stream stream) {
  return kStreamNames[static_cast<std::size_t>(stream)];
}

bool is_communication(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter ||
         kind == OpKind::kExchange || kind == OpKind::kAllReduce || kind == OpKind::kRingShift ||
         kind == OpKind::kSend || kind == OpKind::kReceive || kind == OpKind::kExpertDispatch ||
         kind == OpKind::kExpertCombine;
}

bool has_group(OpKind kind) {
  return is_communication(kind) || kind == OpKind::kSumParts;
}

std::int64_t index_in_group(const Program& program, const Operation& operation) {
  const std::vector<std::int64_t>& ranks = members_of(program, operation);
  return std::ranges::find(ranks, program.rank) - ranks.begin();
}

std::vector<View> read_views(const Program& program, const Operation& operation,
                             std::int64_t index) {
  const View& view = operation.in.at(static_cast<std::size_t>(index));
  if (operation.kind == OpKind::kExchange) {
    return others_parts(program, operation, operation.in, index);
  }
  if (operation.kind == OpKind::kSumParts && index == 0) {
    return without_part(view, operation.attributes.member,
                        std::ssize(members_of(program, operation)));
  }
  return {view};
}

std::vector<View> written_views(const Program& program, const Operation& operation,
                                std::int64_t index) {
  const View& view = operation.out.at(static_cast<std::size_t>(index));
  return operation.kind == OpKind::kExchange
             ? others_parts(program, operation, operation.out, index)
             : std::vector{view};
}

namespace {

template <class ViewsOf>
std::vector<View> present_views(const std::vector<View>& arguments, const ViewsOf& views_of) {
  std::vector<View> views;
  for (std::int64_t i = 0; i < std::ssize(arguments); ++i) {
    for (const View& view : views_of(i)) {
      if (view.present()) {
        views.push_back(view);
      }
    }
  }
  return views;
}

}  // namespace

std::vector<View> read_views(const Program& program, const Operation& operation) {
  return present_views(operation.in,
                       [&](std::int64_t i) { return read_views(program, operation, i); });
}

std::vector<View> written_views(const Program& program, const Operation& operation) {
  return present_views(operation.out,
                       [&](std::int64_t i) { return written_views(program, operation, i); });
}

bool reads_output(const Operation& operation, std::int64_t index) {
  switch (operation.kind) {
    case OpKind::kEmbeddingBackward:
    case OpKind::kLseMerge: return true;
    case OpKind::kAdamW: return index < 3;
    case OpKind::kGemm:
    case OpKind::kGroupedWeightGradient: return operation.attributes.accumulate;
    case OpKind::kExpertCombine: return operation.attributes.accumulate && index == 0;
    case OpKind::kExpertRows: return operation.attributes.accumulate && index == 2;
    case OpKind::kAttentionBackward:
      return operation.attributes.accumulate && (index == 1 || index == 2);
    case OpKind::kRouterBackward:
    case OpKind::kRmsNormBackward:
    case OpKind::kLossCombine:
    case OpKind::kSquaredNorm:
      return operation.attributes.accumulate &&
             (operation.kind == OpKind::kSquaredNorm || index > 0);
    default: return false;
  }
}

std::optional<double> needed_buffer_factor(const ExpertBound& bound, std::int64_t required_rows) {
  if (required_rows <= bound.rows) {
    return std::nullopt;
  }
  return static_cast<double>(div_ceil(required_rows * 1'000'000, bound.even_rows)) / 1e6;
}

std::vector<std::int64_t> launch_order(const Program& program) {
  if (!program.launches.empty()) {
    return program.launches;
  }
  std::vector<std::int64_t> order(program.operations.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

std::string place_of(const Program& program, std::int64_t operation) {
  const Operation& op = program.operations.at(static_cast<std::size_t>(operation));
  return "rank " + std::to_string(program.rank) + ", operation " + std::to_string(operation) +
         " (" + std::string(name_of(op.kind)) + " " + op.label + ")";
}

std::vector<std::int64_t> live_bytes(const Program& program) {
  const std::size_t count = program.operations.size();
  std::vector<std::int64_t> change(count + 1, 0);
  for (const Tensor& tensor : program.tensors) {
    change.at(static_cast<std::size_t>(tensor.born)) += tensor.bytes;
    change.at(static_cast<std::size_t>(tensor.dies) + 1) -= tensor.bytes;
  }
  std::vector<std::int64_t> live(count, 0);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += change[i];
    live[i] = bytes;
  }
  return live;
}

}  // namespace shardplan
