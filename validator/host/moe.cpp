// Mixture of experts on the host: router, where its choices go, and what the experts compute on the
// rows that they received.
#include "validator/host/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "validator/host/ops.h"

namespace shardplan {
namespace {

template <class T>
std::int64_t integer(const HostView<T>& view, std::int64_t row, std::int64_t col) {
  return static_cast<std::int64_t>(view(row, col));
}

std::int64_t sequence_of(const OpAttributes& a, std::int64_t row) {
  return (a.first_row + row) / a.sequence_rows;
}

template <class T>
void softmax(const HostView<T>& in, const HostView<T>& out, std::int64_t row) {
  T top = in(row, 0);
  for (std::int64_t e = 1; e < in.cols; ++e) { top = std::max(top, in(row, e)); }
  T sum = 0;
  for (std::int64_t e = 0; e < in.cols; ++e) {
    out(row, e) = std::exp(in(row, e) - top);
    sum += out(row, e);
  }
  for (std::int64_t e = 0; e < in.cols; ++e) { out(row, e) /= sum; }
}

// Experts, those that the row chooses in front.
template <class T>
std::vector<std::int64_t> preferred(const HostArguments<T>& a, std::int64_t row,
                                    std::int64_t num_choices) {
  const HostView<T>& probabilities = a.out[0];
  std::vector<std::int64_t> order(static_cast<std::size_t>(probabilities.cols));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const OpAttributes& attributes = a.attributes;
  if (attributes.chooses_in_turn) {
    const std::int64_t rows = attributes.sequence_rows;
    const std::int64_t position =
        position_of(attributes, (attributes.first_row + row) % rows, rows);
    const std::int64_t first = position * num_choices % probabilities.cols;
    std::rotate(order.begin(), order.begin() + first, order.end());  // clang 14: no ranges::rotate
  } else {
    std::ranges::stable_sort(order, [&](std::int64_t x, std::int64_t y) {
      return probabilities(row, x) > probabilities(row, y);
    });
  }
  return order;
}

template <class T>
void router_forward(const HostArguments<T>& a) {
  const HostView<T>& probabilities = a.out[0];
  const HostView<T>& choices = a.out[1];
  const HostView<T>& counts = a.out[3];
  for (std::int64_t i = 0; i < counts.elements(); ++i) { counts[i] = 0; }
  for (std::int64_t t = 0; t < probabilities.rows; ++t) {
    softmax(a.in[0], probabilities, t);
    const std::vector<std::int64_t> order = preferred(a, t, choices.cols);
    T chosen = 0;
    for (std::int64_t k = 0; k < choices.cols; ++k) {
      const std::int64_t expert = order[static_cast<std::size_t>(k)];
      choices(t, k) = static_cast<T>(expert);
      chosen += probabilities(t, expert);
      counts(sequence_of(a.attributes, t), expert) += 1;
    }
    for (std::int64_t k = 0; k < choices.cols; ++k) {
      a.out[2](t, k) = probabilities(t, integer(choices, t, k)) / chosen;
    }
  }
}

// Choices of an expert by a member of the group.
template <class T>
std::int64_t choices_of(const HostView<T>& counts, std::int64_t sequences, std::int64_t member,
                        std::int64_t expert) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    sum += integer(counts, member * sequences + i, expert);
  }
  return sum;
}

template <class T>
void expert_rows(const HostArguments<T>& a) {
  const OpAttributes& attributes = a.attributes;
  const HostView<T>& counts = a.in[1];
  const HostView<T>& offsets = a.out[1];
  const std::int64_t members = div_exact(counts.cols, attributes.experts) * attributes.copies;
  const std::int64_t sequences = div_exact(counts.rows, members);
  const std::int64_t own_run = attributes.member / attributes.copies;
  std::vector<std::int64_t> next(static_cast<std::size_t>(counts.cols));  // row, by expert
  std::int64_t required = 0;
  std::int64_t row = 0;
  for (std::int64_t expert = 0; expert < counts.cols; ++expert) {
    const std::int64_t local = expert % attributes.experts;
    row = local == 0 ? 0 : row;
    if (expert / attributes.experts == own_run) {
      offsets(0, local) = static_cast<T>(std::min(row, attributes.capacity));
    }
    for (std::int64_t member = 0; member < members; ++member) {
      if (member == attributes.member) {
        next[static_cast<std::size_t>(expert)] = row;
      }
      row += choices_of(counts, sequences, member, expert);
    }
    if (expert / attributes.experts == own_run) {
      offsets(0, local + 1) = static_cast<T>(std::min(row, attributes.capacity));
    }
    required = std::max(required, row);
  }
  for (std::int64_t i = 0; i < a.in[0].elements(); ++i) {
    a.out[0][i] = static_cast<T>(next[static_cast<std::size_t>(a.in[0][i])]++);
  }
  const T most = static_cast<T>(required);
  a.out[2](0, 0) = attributes.accumulate ? std::max(a.out[2](0, 0), most) : most;
}

// Visits expert, first row and end row of every expert on this rank.
template <class T, class Visit>
void for_each_expert(const HostView<T>& offsets, const Visit& visit) {
  for (std::int64_t e = 0; e + 1 < offsets.cols; ++e) {
    visit(e, integer(offsets, 0, e), integer(offsets, 0, e + 1));
  }
}

template <class T>
void grouped_gemm(const HostArguments<T>& a) {
  const HostView<T>& x = a.in[0];
  const HostView<T>& y = a.out[0];
  const std::int64_t height = div_exact(a.in[1].rows, a.in[2].cols - 1);
  for_each_expert(a.in[2], [&](std::int64_t expert, std::int64_t begin, std::int64_t end) {
    const auto weight = [&](std::int64_t k, std::int64_t j) {
      return a.attributes.transpose_b ? a.in[1](expert * height + j, k)
                                      : a.in[1](expert * height + k, j);
    };
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < y.cols; ++j) {
        T sum = 0;
        for (std::int64_t k = 0; k < x.cols; ++k) { sum += x(i, k) * weight(k, j); }
        y(i, j) = sum;
      }
    }
  });
}

template <class T>
void grouped_weight_gradient(const HostArguments<T>& a) {
  const HostView<T>& dy = a.in[0];
  const HostView<T>& x = a.in[1];
  const HostView<T>& gradient = a.out[0];
  for_each_expert(a.in[2], [&](std::int64_t expert, std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = 0; m < dy.cols; ++m) {
      for (std::int64_t k = 0; k < x.cols; ++k) {
        T sum = 0;
        for (std::int64_t i = begin; i < end; ++i) { sum += dy(i, m) * x(i, k); }
        T& element = gradient(expert * dy.cols + m, k);
        element = a.attributes.accumulate ? element + sum : sum;
      }
    }
  });
}

template <class T>
void swiglu(const HostView<T>& out, const HostView<T>& gate_up, const HostView<T>& weights,
            std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < out.cols; ++j) {
      const T gate = gate_up(i, j);
      out(i, j) = weights(i, 0) * gate * sigmoid(gate) * gate_up(i, j + out.cols);
    }
  }
}

template <class T>
void swiglu_backward(const HostArguments<T>& a) {
  const HostView<T>& dy = a.in[0];
  const HostView<T>& gate_up = a.in[1];
  const HostView<T>& weights = a.in[2];
  const std::int64_t rows = integer(a.in[3], 0, a.in[3].cols - 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    T dweight = 0;
    for (std::int64_t j = 0; j < dy.cols; ++j) {
      const T gate = gate_up(i, j);
      const T up = gate_up(i, j + dy.cols);
      const T s = sigmoid(gate);
      dweight += dy(i, j) * gate * s * up;
      a.out[0](i, j) = weights(i, 0) * dy(i, j) * up * s * (1 + gate * (1 - s));
      a.out[0](i, j + dy.cols) = weights(i, 0) * dy(i, j) * gate * s;
    }
    a.out[1](i, 0) = dweight;
  }
  if (a.out[2].present()) {
    swiglu(a.out[2], gate_up, weights, rows);
  }
}

// With w_k = p_k / sum over the choices c of p_c: dp_k = (dw_k - sum_c(dw_c * w_c)) / sum_c(p_c);
// then through the softmax: dlogit_e = p_e * (dp_e - sum_i(dp_i * p_i)).
template <class T>
void router_backward(const HostArguments<T>& a) {
  const HostView<T>& probabilities = a.in[0];
  const HostView<T>& choices = a.in[1];
  const T scale = static_cast<T>(a.attributes.value);
  std::vector<T> gradient(static_cast<std::size_t>(probabilities.cols));
  T loss = 0;
  for (std::int64_t t = 0; t < probabilities.rows; ++t) {
    for (std::int64_t e = 0; e < probabilities.cols; ++e) {
      const T slope = scale * a.in[3](sequence_of(a.attributes, t), e);
      gradient[static_cast<std::size_t>(e)] = slope;
      loss += slope * probabilities(t, e);
    }
    T chosen = 0;
    T mean = 0;
    for (std::int64_t k = 0; k < choices.cols; ++k) {
      const T probability = probabilities(t, integer(choices, t, k));
      chosen += probability;
      mean += a.in[2](t, k) * probability;
    }
    for (std::int64_t k = 0; k < choices.cols; ++k) {
      gradient[static_cast<std::size_t>(integer(choices, t, k))] +=
          (a.in[2](t, k) - mean / chosen) / chosen;
    }
    T pull = 0;
    for (std::int64_t e = 0; e < probabilities.cols; ++e) {
      pull += gradient[static_cast<std::size_t>(e)] * probabilities(t, e);
    }
    for (std::int64_t e = 0; e < probabilities.cols; ++e) {
      a.out[0](t, e) = probabilities(t, e) * (gradient[static_cast<std::size_t>(e)] - pull);
    }
  }
  a.out[1](0, 0) = a.attributes.accumulate ? a.out[1](0, 0) + loss : loss;
}

}  // namespace

template <class T>
void run_experts_on_host(OpKind kind, const HostArguments<T>& a) {
  switch (kind) {
    case OpKind::kRouterForward: return router_forward(a);
    case OpKind::kExpertRows: return expert_rows(a);
    case OpKind::kGroupedGemm: return grouped_gemm(a);
    case OpKind::kGroupedWeightGradient: return grouped_weight_gradient(a);
    case OpKind::kExpertSwigluForward:
      return swiglu(a.out[0], a.in[0], a.in[1], integer(a.in[2], 0, a.in[2].cols - 1));
    case OpKind::kExpertSwigluBackward: return swiglu_backward(a);
    case OpKind::kRouterBackward: return router_backward(a);
    default: throw std::logic_error("run_experts_on_host: not an operation of experts");
  }
}

template void run_experts_on_host<float>(OpKind, const HostArguments<float>&);
template void run_experts_on_host<double>(OpKind, const HostArguments<double>&);

}  // namespace shardplan
