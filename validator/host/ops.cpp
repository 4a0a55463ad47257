#include "validator/host/ops.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "validator/host/attention.h"
#include "validator/host/fp8.h"
#include "validator/host/moe.h"

namespace shardplan {
namespace {

template <class T>
void copy(const HostArguments<T>& a) {
  for (std::size_t i = 0; i < a.out.size(); ++i) {
    for (std::int64_t e = 0; e < a.out[i].elements(); ++e) { a.out[i][e] = a.in[i][e]; }
  }
}

template <class T>
void add(const HostArguments<T>& a) {
  for (std::int64_t e = 0; e < a.out[0].elements(); ++e) { a.out[0][e] = a.in[0][e] + a.in[1][e]; }
}

template <class T>
void sum_parts(const HostArguments<T>& a) {
  const std::int64_t part = a.in[1].elements();
  const std::int64_t count = a.in[0].elements() / part;
  for (std::int64_t e = 0; e < part; ++e) {
    T sum = 0;
    for (std::int64_t member = 0; member < count; ++member) {
      sum += member == a.attributes.member ? a.in[1][e] : a.in[0][member * part + e];
    }
    a.out[0][e] = sum;
  }
}

template <class T>
void embedding(const HostArguments<T>& a) {
  const HostView<T>& table = a.in[1];
  for (std::int64_t i = 0; i < a.out[0].rows; ++i) {
    const auto row = static_cast<std::int64_t>(a.in[0](i, 0)) - a.attributes.first_row;
    const bool is_ours = row >= 0 && row < table.rows;
    for (std::int64_t j = 0; j < table.cols; ++j) { a.out[0](i, j) = is_ours ? table(row, j) : 0; }
  }
}

template <class T>
void embedding_backward(const HostArguments<T>& a) {
  const HostView<T>& table = a.out[0];
  for (std::int64_t i = 0; i < a.in[1].rows; ++i) {
    const auto row = static_cast<std::int64_t>(a.in[0](i, 0)) - a.attributes.first_row;
    if (row < 0 || row >= table.rows) {
      continue;
    }
    for (std::int64_t j = 0; j < table.cols; ++j) { table(row, j) += a.in[1](i, j); }
  }
}

template <class T>
void rms_norm(const HostView<T>& y, const HostView<T>& rstd, const HostView<T>& x,
              const HostView<T>& weight, double epsilon) {
  for (std::int64_t i = 0; i < x.rows; ++i) {
    T squares = 0;
    for (std::int64_t j = 0; j < x.cols; ++j) { squares += x(i, j) * x(i, j); }
    const T scale = 1 / std::sqrt(squares / static_cast<T>(x.cols) + static_cast<T>(epsilon));
    if (rstd.present()) {
      rstd(i, 0) = scale;
    }
    for (std::int64_t j = 0; j < x.cols; ++j) { y(i, j) = x(i, j) * scale * weight(0, j); }
  }
}

// y = x * r * w with r = rstd: dx_j = r * w_j * dy_j - x_j * r^3 / h * sum_k(dy_k * w_k * x_k).
template <class T>
void rms_norm_backward(const HostArguments<T>& a) {
  const HostView<T>& dy = a.in[0];
  const HostView<T>& x = a.in[1];
  const HostView<T>& weight = a.in[3];
  const HostView<T>& dx = a.out[0];
  const HostView<T>& dweight = a.out[1];
  for (std::int64_t j = 0; j < x.cols && !a.attributes.accumulate; ++j) { dweight(0, j) = 0; }
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const T scale = a.in[2](i, 0);
    T dot = 0;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      dot += dy(i, j) * weight(0, j) * x(i, j);
      dweight(0, j) += dy(i, j) * x(i, j) * scale;
    }
    const T pull = dot * scale * scale * scale / static_cast<T>(x.cols);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const T gradient = dy(i, j) * weight(0, j) * scale - x(i, j) * pull;
      dx(i, j) = a.in[4].present() ? a.in[4](i, j) + gradient : gradient;
    }
  }
}

template <class T>
HostView<T> transposed(HostView<T> view) {
  std::swap(view.rows, view.cols);
  std::swap(view.row_step, view.step);
  return view;
}

// A matrix in memory of its own, rounded to fp8 under its own scale.
template <class T>
class RoundedMatrix {
 public:
  RoundedMatrix(const HostView<T>& from, Fp8Format format)
      : rows_(from.rows), cols_(from.cols), values_(static_cast<std::size_t>(from.elements())) {
    T amax = 0;
    for (std::int64_t e = 0; e < from.elements(); ++e) { amax = std::max(amax, std::abs(from[e])); }
    const double scale = std::ldexp(1.0, fp8_scale_exponent(format, static_cast<double>(amax)));
    for (std::int64_t e = 0; e < from.elements(); ++e) {
      const double rounded = rounded_to_fp8(format, static_cast<double>(from[e]) * scale);
      values_[static_cast<std::size_t>(e)] = static_cast<T>(rounded / scale);
    }
  }
  HostView<T> view() {
    return {.data = values_.data(), .rows = rows_, .cols = cols_, .row_step = cols_, .step = 1};
  }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  std::vector<T> values_;
};

template <class T>
void multiply(const HostArguments<T>& arguments, const HostView<T>& in0, const HostView<T>& in1) {
  const OpAttributes& attributes = arguments.attributes;
  const HostView<T> a = attributes.transpose_a ? transposed(in0) : in0;
  const HostView<T> b = attributes.transpose_b ? transposed(in1) : in1;
  const HostView<T>& c = arguments.out[0];
  std::vector<T> row(static_cast<std::size_t>(c.cols));
  for (std::int64_t i = 0; i < c.rows; ++i) {
    std::ranges::fill(row, T{0});
    for (std::int64_t k = 0; k < a.cols; ++k) {
      const T value = a(i, k);
      for (std::int64_t j = 0; j < c.cols; ++j) {
        row[static_cast<std::size_t>(j)] += value * b(k, j);
      }
    }
    for (std::int64_t j = 0; j < c.cols; ++j) {
      const T sum = row[static_cast<std::size_t>(j)];
      c(i, j) = attributes.accumulate ? c(i, j) + sum : sum;
    }
  }
}

template <class T>
void gemm(const HostArguments<T>& arguments) {
  if (!arguments.attributes.fp8) {
    return multiply(arguments, arguments.in[0], arguments.in[1]);
  }
  RoundedMatrix<T> a(arguments.in[0], arguments.attributes.fp8->a);
  RoundedMatrix<T> b(arguments.in[1], arguments.attributes.fp8->b);
  multiply(arguments, a.view(), b.view());
}

template <class T>
void rope(const HostArguments<T>& a) {
  const OpAttributes& attributes = a.attributes;
  const std::int64_t half = attributes.head_dim / 2;
  const std::int64_t length = a.in[0].rows / attributes.batch;
  for (std::int64_t i = 0; i < a.in[0].rows; ++i) {
    const auto position = static_cast<double>(position_of(attributes, i % length, length));
    for (std::int64_t j = 0; j < half; ++j) {
      const double share = -2.0 * static_cast<double>(j) / static_cast<double>(2 * half);
      const double angle = position * std::pow(attributes.theta, share);
      const T sine = static_cast<T>(attributes.inverse ? -std::sin(angle) : std::sin(angle));
      const T cosine = static_cast<T>(std::cos(angle));
      for (std::int64_t head = 0; head < attributes.heads; ++head) {
        const std::int64_t at = head * attributes.head_dim + j;
        const T low = a.in[0](i, at);
        const T high = a.in[0](i, at + half);
        a.out[0](i, at) = low * cosine - high * sine;
        a.out[0](i, at + half) = high * cosine + low * sine;
      }
    }
  }
}

template <class T>
void swiglu(const HostView<T>& out, const HostView<T>& gate_up) {
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.cols; ++j) {
      const T gate = gate_up(i, j);
      out(i, j) = gate * sigmoid(gate) * gate_up(i, j + out.cols);
    }
  }
}

template <class T>
void swiglu_backward(const HostArguments<T>& a) {
  const HostView<T>& dy = a.in[0];
  const HostView<T>& gate_up = a.in[1];
  if (a.out[1].present()) {
    swiglu(a.out[1], gate_up);
  }
  for (std::int64_t i = 0; i < dy.rows; ++i) {
    for (std::int64_t j = 0; j < dy.cols; ++j) {
      const T gate = gate_up(i, j);
      const T up = gate_up(i, j + dy.cols);
      const T s = sigmoid(gate);
      a.out[0](i, j) = dy(i, j) * up * s * (1 + gate * (1 - s));
      a.out[0](i, j + dy.cols) = dy(i, j) * gate * s;
    }
  }
}

template <class T>
void squared_norm(const HostArguments<T>& a) {
  T sum = 0;
  for (std::int64_t e = 0; e < a.in[0].elements(); ++e) { sum += a.in[0][e] * a.in[0][e]; }
  sum *= static_cast<T>(a.attributes.value);
  a.out[0](0, 0) = a.attributes.accumulate ? a.out[0](0, 0) + sum : sum;
}

// Loshchilov, Hutter: Decoupled weight decay regularization, arXiv 1711.05101, algorithm 2.
template <class T>
void adamw(const HostArguments<T>& a) {
  const OpAttributes& h = a.attributes;
  const T clip = a.in[1](0, 0);
  const double number = static_cast<double>(a.in[2](0, 0));
  const T rate = a.in[2](0, 1);
  const T beta1 = static_cast<T>(h.beta1);
  const T beta2 = static_cast<T>(h.beta2);
  const T correction1 = static_cast<T>(1 - std::pow(h.beta1, number));
  const T correction2 = static_cast<T>(1 - std::pow(h.beta2, number));
  for (std::int64_t e = 0; e < a.in[0].elements(); ++e) {
    const T gradient = a.in[0][e] * clip;
    T& master = a.out[0][e];
    T& first = a.out[1][e];
    T& second = a.out[2][e];
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient * gradient;
    const T direction =
        first / correction1 / (std::sqrt(second / correction2) + static_cast<T>(h.epsilon));
    master -= rate * (direction + static_cast<T>(h.weight_decay) * master);
    a.out[3][e] = master;
  }
}

}  // namespace

template <class T>
void run_on_host(OpKind kind, const HostArguments<T>& a) {
  switch (kind) {
    case OpKind::kFill:
      for (std::int64_t e = 0; e < a.out[0].elements(); ++e) {
        a.out[0][e] = static_cast<T>(a.attributes.value);
      }
      return;
    case OpKind::kCopy: return copy(a);
    case OpKind::kAdd: return add(a);
    case OpKind::kSumParts: return sum_parts(a);
    case OpKind::kEmbeddingForward: return embedding(a);
    case OpKind::kEmbeddingBackward: return embedding_backward(a);
    case OpKind::kRmsNormForward:
      return rms_norm(a.out[0], a.out[1], a.in[0], a.in[1], a.attributes.epsilon);
    case OpKind::kAddRmsNormForward:
      for (std::int64_t e = 0; e < a.out[2].elements(); ++e) {
        a.out[2][e] = a.in[0][e] + a.in[2][e];
      }
      return rms_norm(a.out[0], a.out[1], a.out[2], a.in[1], a.attributes.epsilon);
    case OpKind::kRmsNormBackward: return rms_norm_backward(a);
    case OpKind::kGemm: return gemm(a);
    case OpKind::kRope: return rope(a);
    case OpKind::kAttentionForward: return attention_forward_on_host(a);
    case OpKind::kAttentionBackward: return attention_backward_on_host(a);
    case OpKind::kLseMerge: return lse_merge_on_host(a);
    case OpKind::kSwigluForward: return swiglu(a.out[0], a.in[0]);
    case OpKind::kSwigluBackward: return swiglu_backward(a);
    case OpKind::kLossStatistics:
    case OpKind::kLossCombine:
    case OpKind::kLossGradient: return run_loss_on_host(kind, a);
    case OpKind::kRouterForward:
    case OpKind::kExpertRows:
    case OpKind::kGroupedGemm:
    case OpKind::kGroupedWeightGradient:
    case OpKind::kExpertSwigluForward:
    case OpKind::kExpertSwigluBackward:
    case OpKind::kRouterBackward: return run_experts_on_host(kind, a);
    case OpKind::kSquaredNorm: return squared_norm(a);
    case OpKind::kClipFactor:
      a.out[0](0, 1) = std::sqrt(a.in[0](0, 0));
      a.out[0](0, 0) = std::min(T{1}, static_cast<T>(a.attributes.value) / a.out[0](0, 1));
      return;
    case OpKind::kAdamW: return adamw(a);
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kExchange:
    case OpKind::kAllReduce:
    case OpKind::kRingShift:
    case OpKind::kSend:
    case OpKind::kExpertDispatch:
    case OpKind::kExpertCombine:
    case OpKind::kReceive: break;
  }
  throw std::logic_error("run_on_host: " + std::string(name_of(kind)) + " needs other ranks");
}

template void run_on_host<float>(OpKind, const HostArguments<float>&);
template void run_on_host<double>(OpKind, const HostArguments<double>&);

}  // namespace shardplan
