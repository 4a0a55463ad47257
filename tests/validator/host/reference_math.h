// Dense float64 mathematics of the reference model: plain loops, nothing fused, nothing parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "validator/program/matrix.h"

namespace shardplan {

void add_to(Matrix& to, const Matrix& what);
Matrix rows_of(const Matrix& x, const std::vector<std::int64_t>& rows);

// y = x * w, and its backward: returns dx and adds to dw.
Matrix product(const Matrix& x, const Matrix& w);
Matrix product_backward(const Matrix& dy, const Matrix& x, const Matrix& w, Matrix& dw);

// y = x / rms(x) * weight per row, and its backward: returns dx and adds to dweight.
Matrix rms_norm(const Matrix& x, const Matrix& weight, double epsilon);
Matrix rms_norm_backward(const Matrix& dy, const Matrix& x, const Matrix& weight, double epsilon,
                         Matrix& dweight);

double sigmoid(double x);

// Rotates every head of x by the position of its row in its sequence of `length` rows, the lower
// half of a head against the upper; direction -1 rotates back.
void rotate(Matrix& x, std::int64_t head_dim, std::int64_t length, double theta, double direction);

// Where one query head looks: rows of one sequence, columns of its head and its kv head.
struct HeadView {
  std::int64_t first_row = 0;
  std::int64_t length = 0;
  std::int64_t query_col = 0;
  std::int64_t key_col = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;

  std::int64_t first_key(std::int64_t query) const {
    return window == 0 ? 0 : std::max<std::int64_t>(0, query - window + 1);
  }
};

struct AttentionGradient {
  Matrix q;
  Matrix k;
  Matrix v;
};

// o += softmax(q k^T / sqrt(d)) v of one head, causal; and its backward, added to the gradient.
void attend(const HeadView& head, const Matrix& q, const Matrix& k, const Matrix& v, Matrix& o);
void attend_backward(const HeadView& head, const Matrix& dout, const Matrix& q, const Matrix& k,
                     const Matrix& v, AttentionGradient& gradient);

}  // namespace shardplan
