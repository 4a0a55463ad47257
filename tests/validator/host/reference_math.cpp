#include "tests/validator/host/reference_math.h"

#include <algorithm>
#include <cmath>

namespace shardplan {
namespace {

double inverse_rms(const Matrix& x, std::int64_t row, double epsilon) {
  double squares = 0;
  for (std::int64_t j = 0; j < x.cols; ++j) { squares += at(x, row, j) * at(x, row, j); }
  return 1 / std::sqrt(squares / static_cast<double>(x.cols) + epsilon);
}

// Probabilities of query i over keys first_key(i)..i.
std::vector<double> attention_weights(const HeadView& head, const Matrix& q, const Matrix& k,
                                      std::int64_t i) {
  const double scale = 1 / std::sqrt(static_cast<double>(head.head_dim));
  std::vector<double> weights;
  for (std::int64_t j = head.first_key(i); j <= i; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < head.head_dim; ++d) {
      dot += at(q, head.first_row + i, head.query_col + d) *
             at(k, head.first_row + j, head.key_col + d);
    }
    weights.push_back(dot * scale);
  }
  const double top = *std::ranges::max_element(weights);
  double sum = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - top);
    sum += weight;
  }
  for (double& weight : weights) { weight /= sum; }
  return weights;
}

}  // namespace

Matrix product(const Matrix& x, const Matrix& w) {
  Matrix y = zeros(x.rows, w.cols);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t k = 0; k < x.cols; ++k) {
      const double value = at(x, i, k);
      for (std::int64_t j = 0; j < w.cols; ++j) { at(y, i, j) += value * at(w, k, j); }
    }
  }
  return y;
}

// Backward of y = x * w: returns dx and adds to dw.
Matrix product_backward(const Matrix& dy, const Matrix& x, const Matrix& w, Matrix& dw) {
  Matrix dx = zeros(x.rows, x.cols);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t k = 0; k < x.cols; ++k) {
      for (std::int64_t j = 0; j < w.cols; ++j) {
        at(dx, i, k) += at(dy, i, j) * at(w, k, j);
        at(dw, k, j) += at(x, i, k) * at(dy, i, j);
      }
    }
  }
  return dx;
}

void add_to(Matrix& to, const Matrix& what) {
  for (std::size_t i = 0; i < to.values.size(); ++i) { to.values[i] += what.values[i]; }
}

Matrix rms_norm(const Matrix& x, const Matrix& weight, double epsilon) {
  Matrix y = zeros(x.rows, x.cols);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const double scale = inverse_rms(x, i, epsilon);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      at(y, i, j) = at(x, i, j) * scale * at(weight, 0, j);
    }
  }
  return y;
}

Matrix rms_norm_backward(const Matrix& dy, const Matrix& x, const Matrix& weight, double epsilon,
                         Matrix& dweight) {
  Matrix dx = zeros(x.rows, x.cols);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const double scale = inverse_rms(x, i, epsilon);
    double dot = 0;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      dot += at(dy, i, j) * at(weight, 0, j) * at(x, i, j);
      at(dweight, 0, j) += at(dy, i, j) * at(x, i, j) * scale;
    }
    const double pull = dot * scale * scale * scale / static_cast<double>(x.cols);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      at(dx, i, j) = at(dy, i, j) * at(weight, 0, j) * scale - at(x, i, j) * pull;
    }
  }
  return dx;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Rotates every head of x by its position; direction -1 rotates back.
void rotate(Matrix& x, std::int64_t head_dim, std::int64_t length, double theta, double direction) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const double position = static_cast<double>(i % length);
    for (std::int64_t begin = 0; begin < x.cols; begin += head_dim) {
      for (std::int64_t j = 0; j < half; ++j) {
        const double angle = position * std::pow(theta, -2.0 * static_cast<double>(j) /
                                                            static_cast<double>(head_dim));
        const double sine = direction * std::sin(angle);
        const double cosine = std::cos(angle);
        const double low = at(x, i, begin + j);
        const double high = at(x, i, begin + half + j);
        at(x, i, begin + j) = low * cosine - high * sine;
        at(x, i, begin + half + j) = high * cosine + low * sine;
      }
    }
  }
}

void attend(const HeadView& head, const Matrix& q, const Matrix& k, const Matrix& v, Matrix& o) {
  for (std::int64_t i = 0; i < head.length; ++i) {
    const std::vector<double> weights = attention_weights(head, q, k, i);
    for (std::size_t n = 0; n < weights.size(); ++n) {
      const std::int64_t j = head.first_key(i) + static_cast<std::int64_t>(n);
      for (std::int64_t d = 0; d < head.head_dim; ++d) {
        at(o, head.first_row + i, head.query_col + d) +=
            weights[n] * at(v, head.first_row + j, head.key_col + d);
      }
    }
  }
}

void attend_backward(const HeadView& head, const Matrix& dout, const Matrix& q, const Matrix& k,
                     const Matrix& v, AttentionGradient& gradient) {
  const double scale = 1 / std::sqrt(static_cast<double>(head.head_dim));
  for (std::int64_t i = 0; i < head.length; ++i) {
    const std::vector<double> weights = attention_weights(head, q, k, i);
    std::vector<double> dweights(weights.size(), 0.0);
    double mean = 0;
    for (std::size_t n = 0; n < weights.size(); ++n) {
      const std::int64_t row = head.first_row + head.first_key(i) + static_cast<std::int64_t>(n);
      for (std::int64_t d = 0; d < head.head_dim; ++d) {
        const double out = at(dout, head.first_row + i, head.query_col + d);
        dweights[n] += out * at(v, row, head.key_col + d);
        at(gradient.v, row, head.key_col + d) += weights[n] * out;
      }
      mean += weights[n] * dweights[n];
    }
    for (std::size_t n = 0; n < weights.size(); ++n) {
      const std::int64_t row = head.first_row + head.first_key(i) + static_cast<std::int64_t>(n);
      const double dscore = weights[n] * (dweights[n] - mean) * scale;
      for (std::int64_t d = 0; d < head.head_dim; ++d) {
        at(gradient.q, head.first_row + i, head.query_col + d) +=
            dscore * at(k, row, head.key_col + d);
        at(gradient.k, row, head.key_col + d) +=
            dscore * at(q, head.first_row + i, head.query_col + d);
      }
    }
  }
}

Matrix rows_of(const Matrix& x, const std::vector<std::int64_t>& rows) {
  Matrix out = zeros(static_cast<std::int64_t>(rows.size()), x.cols);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      at(out, static_cast<std::int64_t>(n), j) = at(x, rows[n], j);
    }
  }
  return out;
}

}  // namespace shardplan
