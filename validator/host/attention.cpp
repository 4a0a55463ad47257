// Attention and the loss on the host: what has an exponential and a maximum in it.
#include "validator/host/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "validator/host/ops.h"

namespace shardplan {
namespace {

// One query of one head: its rows and columns, and the keys that it sees.
struct Query {
  std::int64_t row = 0;
  std::int64_t head = 0;
  std::int64_t col = 0;      // of its head in q and o
  std::int64_t key_col = 0;  // of its head in k and v
  std::int64_t first_key = 0;
  std::int64_t end_key = 0;  // rows of k and v
};

template <class T, class Visit>
void for_each_query(const OpAttributes& a, const HostView<T>& q, const HostView<T>& k,
                    const Visit& visit) {
  const std::int64_t queries = q.rows / a.batch;
  const std::int64_t keys = k.rows / a.batch;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t position = a.query_position + row % queries;
    const std::int64_t base = row / queries * keys;
    const std::int64_t behind = position - a.key_position + 1;  // keys up to the query's position
    const std::int64_t end = std::clamp<std::int64_t>(behind, 0, keys);
    const std::int64_t first =
        a.window == 0 ? 0 : std::clamp<std::int64_t>(behind - a.window, 0, end);
    for (std::int64_t head = 0; head < a.heads; ++head) {
      visit(Query{.row = row,
                  .head = head,
                  .col = head * a.head_dim,
                  .key_col = head / (a.heads / a.kv_heads) * a.head_dim,
                  .first_key = base + first,
                  .end_key = base + end});
    }
  }
}

template <class T>
T score(const Query& query, const OpAttributes& a, const HostView<T>& q, const HostView<T>& k,
        std::int64_t key) {
  T dot = 0;
  for (std::int64_t d = 0; d < a.head_dim; ++d) {
    dot += q(query.row, query.col + d) * k(key, query.key_col + d);
  }
  return dot / std::sqrt(static_cast<T>(a.head_dim));
}

// Columns of the shard that are not padding.
template <class T>
std::int64_t real_columns(const OpAttributes& a, const HostView<T>& logits) {
  return std::clamp<std::int64_t>(a.vocab - a.first_row, 0, logits.cols);
}

template <class T>
void loss_statistics(const HostArguments<T>& a) {
  const HostView<T>& logits = a.in[0];
  const std::int64_t real = real_columns(a.attributes, logits);
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    T top = -std::numeric_limits<T>::infinity();
    for (std::int64_t j = 0; j < real; ++j) { top = std::max(top, logits(i, j)); }
    T sum = 0;
    for (std::int64_t j = 0; j < real; ++j) { sum += std::exp(logits(i, j) - top); }
    const auto target = static_cast<std::int64_t>(a.in[1](i, 0)) - a.attributes.first_row;
    a.out[0](i, 0) = top;
    a.out[0](i, 1) = sum;
    a.out[0](i, 2) = target >= 0 && target < real ? logits(i, target) : 0;
  }
}

template <class T>
void loss_combine(const HostArguments<T>& a) {
  const std::int64_t tokens = a.out[0].rows;
  T loss = 0;
  for (std::int64_t i = 0; i < tokens; ++i) {
    T top = a.in[0](i, 0);
    for (std::int64_t row = i; row < a.in[0].rows; row += tokens) {
      top = std::max(top, a.in[0](row, 0));
    }
    T sum = 0;
    T target = 0;
    for (std::int64_t row = i; row < a.in[0].rows; row += tokens) {
      sum += a.in[0](row, 1) * std::exp(a.in[0](row, 0) - top);
      target += a.in[0](row, 2);
    }
    a.out[0](i, 0) = top;
    a.out[0](i, 1) = sum;
    a.out[0](i, 2) = target;
    loss += std::log(sum) + top - target;
  }
  loss *= static_cast<T>(a.attributes.value);
  a.out[1](0, 0) = a.attributes.accumulate ? a.out[1](0, 0) + loss : loss;
}

template <class T>
void loss_gradient(const HostArguments<T>& a) {
  const HostView<T>& logits = a.in[0];
  const std::int64_t real = real_columns(a.attributes, logits);
  const T scale = static_cast<T>(a.attributes.value);
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    const auto target = static_cast<std::int64_t>(a.in[1](i, 0)) - a.attributes.first_row;
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      const T probability = std::exp(logits(i, j) - a.in[2](i, 0)) / a.in[2](i, 1);
      a.out[0](i, j) = j < real ? (probability - (j == target ? 1 : 0)) * scale : 0;
    }
  }
}

}  // namespace

template <class T>
void attention_forward_on_host(const HostArguments<T>& a) {
  const OpAttributes& attributes = a.attributes;
  std::vector<T> weights;
  for_each_query(attributes, a.in[0], a.in[1], [&](const Query& query) {
    T top = -std::numeric_limits<T>::infinity();
    weights.clear();
    for (std::int64_t key = query.first_key; key < query.end_key; ++key) {
      weights.push_back(score(query, attributes, a.in[0], a.in[1], key));
      top = std::max(top, weights.back());
    }
    T sum = 0;
    for (T& weight : weights) {
      weight = std::exp(weight - top);
      sum += weight;
    }
    a.out[1](query.row, query.head) = top + std::log(sum);
    for (std::int64_t d = 0; d < attributes.head_dim; ++d) {
      T out = 0;
      for (std::int64_t key = query.first_key; key < query.end_key; ++key) {
        out += weights[static_cast<std::size_t>(key - query.first_key)] / sum *
               a.in[2](key, query.key_col + d);
      }
      a.out[0](query.row, query.col + d) = out;
    }
  });
}

template <class T>
void attention_backward_on_host(const HostArguments<T>& a) {
  const OpAttributes& attributes = a.attributes;
  const HostView<T>& dout = a.in[0];
  const T scale = 1 / std::sqrt(static_cast<T>(attributes.head_dim));
  for (std::size_t i = attributes.accumulate ? 3 : 0; i < 3; ++i) {
    for (std::int64_t e = 0; e < a.out[i].elements(); ++e) { a.out[i][e] = 0; }
  }
  for_each_query(attributes, a.in[1], a.in[2], [&](const Query& query) {
    T mean = 0;
    for (std::int64_t d = 0; d < attributes.head_dim; ++d) {
      mean += dout(query.row, query.col + d) * a.in[4](query.row, query.col + d);
    }
    std::vector<T> dq(static_cast<std::size_t>(attributes.head_dim), T{0});
    for (std::int64_t key = query.first_key; key < query.end_key; ++key) {
      const T weight = std::exp(score(query, attributes, a.in[1], a.in[2], key) -
                                a.in[5](query.row, query.head));
      T dweight = 0;
      for (std::int64_t d = 0; d < attributes.head_dim; ++d) {
        dweight += dout(query.row, query.col + d) * a.in[3](key, query.key_col + d);
        a.out[2](key, query.key_col + d) += weight * dout(query.row, query.col + d);
      }
      const T dscore = weight * (dweight - mean) * scale;
      for (std::int64_t d = 0; d < attributes.head_dim; ++d) {
        dq[static_cast<std::size_t>(d)] += dscore * a.in[2](key, query.key_col + d);
        a.out[1](key, query.key_col + d) += dscore * a.in[1](query.row, query.col + d);
      }
    }
    for (std::int64_t d = 0; d < attributes.head_dim; ++d) {
      a.out[0](query.row, query.col + d) = dq[static_cast<std::size_t>(d)];
    }
  });
}

// Liu et al., arXiv 2310.01889: with new = log(exp(lse) + exp(part)), both results scaled by how
// much of all weights their keys had.
template <class T>
void lse_merge_on_host(const HostArguments<T>& a) {
  const HostView<T>& lse = a.out[1];
  const std::int64_t head_dim = a.out[0].cols / lse.cols;
  for (std::int64_t i = 0; i < lse.rows; ++i) {
    for (std::int64_t head = 0; head < lse.cols; ++head) {
      const T old = lse(i, head);
      const T part = a.in[1](i, head);
      if (part == -std::numeric_limits<T>::infinity()) {
        continue;
      }
      const T top = std::max(old, part);
      const T sum = top + std::log(std::exp(old - top) + std::exp(part - top));
      for (std::int64_t d = head * head_dim; d < (head + 1) * head_dim; ++d) {
        a.out[0](i, d) =
            a.out[0](i, d) * std::exp(old - sum) + a.in[0](i, d) * std::exp(part - sum);
      }
      lse(i, head) = sum;
    }
  }
}

template <class T>
void run_loss_on_host(OpKind kind, const HostArguments<T>& a) {
  switch (kind) {
    case OpKind::kLossStatistics: return loss_statistics(a);
    case OpKind::kLossCombine: return loss_combine(a);
    case OpKind::kLossGradient: return loss_gradient(a);
    default: throw std::logic_error("run_loss_on_host: not an operation of the loss");
  }
}

template void attention_forward_on_host<float>(const HostArguments<float>&);
template void attention_forward_on_host<double>(const HostArguments<double>&);
template void attention_backward_on_host<float>(const HostArguments<float>&);
template void attention_backward_on_host<double>(const HostArguments<double>&);
template void lse_merge_on_host<float>(const HostArguments<float>&);
template void lse_merge_on_host<double>(const HostArguments<double>&);
template void run_loss_on_host<float>(OpKind, const HostArguments<float>&);
template void run_loss_on_host<double>(OpKind, const HostArguments<double>&);

}  // namespace shardplan
