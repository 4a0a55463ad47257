#include "validator/program/operation_work.h"

#include <algorithm>
#include <iterator>

namespace shardplan {
namespace {

// Pairs of a query and a key that it sees.
double causal_pairs(const OpAttributes& a, std::int64_t queries, std::int64_t keys) {
  double pairs = 0;
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t last = std::min(keys, a.query_position - a.key_position + i + 1);
    const std::int64_t first = a.window > 0 ? std::max<std::int64_t>(0, last - a.window) : 0;
    pairs += static_cast<double>(std::max<std::int64_t>(0, last - first));
  }
  return pairs;
}

}  // namespace

double flops_of(const Operation& op) {
  const OpAttributes& a = op.attributes;
  if (op.kind == OpKind::kGemm) {
    const std::int64_t inner = a.transpose_a ? op.in[0].rows : op.in[0].cols;
    return 2.0 * static_cast<double>(op.out[0].elements()) * static_cast<double>(inner);
  }
  const bool is_forward = op.kind == OpKind::kAttentionForward;
  if (is_forward || op.kind == OpKind::kAttentionBackward) {
    const std::int64_t q = is_forward ? 0 : 1;
    const std::int64_t queries = op.in[static_cast<std::size_t>(q)].rows / a.batch;
    const std::int64_t keys = op.in[static_cast<std::size_t>(q) + 1].rows / a.batch;
    // Two products forward, five backward.
    return (is_forward ? 2 : 5) * 2.0 * causal_pairs(a, queries, keys) *
           static_cast<double>(a.batch * a.heads * a.head_dim);
  }
  return 0;
}

double bytes_of(const Program& program, const Operation& op) {
  const auto bytes = [&](const View& view) {
    return view.present() ? static_cast<double>(view.elements()) *
                                static_cast<double>(bytes_of(
                                    program.tensors[static_cast<std::size_t>(view.tensor)].dtype))
                          : 0.0;
  };
  if (op.kind == OpKind::kEmbeddingForward) {  // rows of a table
    return 2 * bytes(op.out[0]);
  }
  if (op.kind == OpKind::kEmbeddingBackward) {
    return 3 * bytes(op.in[1]);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < std::ssize(op.in); ++i) {
    for (const View& view : read_views(program, op, i)) { sum += bytes(view); }
  }
  for (std::int64_t i = 0; i < std::ssize(op.out); ++i) {
    for (const View& view : written_views(program, op, i)) {
      sum += bytes(view) * (reads_output(op, i) ? 2 : 1);
    }
  }
  return sum;
}

}  // namespace shardplan
