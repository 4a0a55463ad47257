// Attention in double precision, and shapes to try it on: what the tests of attention share.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/attention/attention.h"
#include "tests/kernels/device.h"

namespace shardplan {

// Lengths that no tile divides, shared key heads, packed rows, chunks in the middle of a sequence.
inline const AttentionShape kShapes[] = {
    {.query_length = 1, .key_length = 1, .heads = 1, .kv_heads = 1, .head_dim = 128},
    {.batch = 2, .query_length = 100, .key_length = 100, .heads = 4, .kv_heads = 2, .head_dim = 64},
    {.query_length = 257, .key_length = 257, .heads = 6, .kv_heads = 2, .head_dim = 128},
    {.query_length = 130,
     .key_length = 390,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 128,
     .query_position = 260},
    {.query_length = 70,
     .key_length = 90,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 64,
     .query_position = 89},  // no mask
    {.query_length = 300,
     .key_length = 300,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .window = 40},
    {.query_length = 200,
     .key_length = 200,  // a chunk of a ring and the one before it, under a window
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .query_position = 200,
     .window = 250},
    {.query_length = 130,
     .key_length = 390,  // the last chunk of gathered keys, under a window
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .query_position = 260,
     .window = 100},
    {.batch = 2,
     .query_length = 37,
     .key_length = 45,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 24,
     .query_position = 8},
    {.query_length = 40, .key_length = 40, .heads = 2, .kv_heads = 1, .head_dim = 256, .window = 7},
    // More tiles than stages of copies, one to eight heads for those of keys.
    {.query_length = 330, .key_length = 330, .heads = 8, .kv_heads = 1, .head_dim = 128},
    {.query_length = 333, .key_length = 333, .heads = 2, .kv_heads = 2, .head_dim = 64},
    {.query_length = 200,
     .key_length = 450,  // the last hundred keys are seen by none
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 128,
     .query_position = 150},
    {.query_length = 150,
     .key_length = 500,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .query_position = 499},  // no mask
    {.batch = 2,
     .query_length = 450,
     .key_length = 450,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .window = 150},
};

// q, k, v lie side by side in one row.
inline AttentionShape packed(AttentionShape shape) {
  shape.q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  shape.kv_stride = shape.q_stride;
  shape.o_stride = shape.heads * shape.head_dim;
  return shape;
}

template <class T>
struct Inputs {
  std::vector<T> q, kv, dout;
};

// Other values with every call.
template <class T>
Inputs<T> random_inputs(const AttentionShape& s) {
  static unsigned seed = 0;
  return {random_values<T>(s.batch * s.query_length * s.q_stride, ++seed),
          random_values<T>(s.batch * s.key_length * s.kv_stride, ++seed),
          random_values<T>(s.batch * s.query_length * s.o_stride, ++seed)};
}

struct Expected {
  std::vector<double> o, lse, dq, dk,
      dv;  // dq with o's rows, dk and dv [rows, kv_heads * head_dim]
};

inline std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// One row of queries in double precision.
template <class T>
void expect_row(Expected& e, const Inputs<T>& in, const AttentionShape& s, std::int64_t sequence,
                std::int64_t query, std::int64_t head) {
  const std::int64_t d = s.head_dim;
  const std::int64_t kv_head = head / (s.heads / s.kv_heads);
  const std::int64_t row = sequence * s.query_length + query;
  const auto q = [&](std::int64_t i) {
    return to_double(in.q[at(row * s.q_stride + head * d + i)]);
  };
  const auto g = [&](std::int64_t i) {
    return to_double(in.dout[at(row * s.o_stride + head * d + i)]);
  };
  const std::int64_t k_offset = s.heads * d + kv_head * d;
  const auto kv_at = [&](std::int64_t key, std::int64_t i) {
    return at((sequence * s.key_length + key) * s.kv_stride + k_offset + i);
  };
  const auto k = [&](std::int64_t key, std::int64_t i) { return to_double(in.kv[kv_at(key, i)]); };
  const auto v = [&](std::int64_t key, std::int64_t i) {
    return to_double(in.kv[kv_at(key, s.kv_heads * d + i)]);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const std::int64_t end = std::min(s.key_length, s.query_position + query + 1);
  const std::int64_t begin =
      s.window == 0 ? 0 : std::max<std::int64_t>(0, s.query_position + query - s.window + 1);
  std::vector<double> p;
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t key = begin; key < end; ++key) {
    double score = 0;
    for (std::int64_t i = 0; i < d; ++i) { score += scale * q(i) * k(key, i); }
    p.push_back(score);
    max = std::max(max, score);
  }
  double sum = 0;
  for (const double score : p) { sum += std::exp(score - max); }
  const double lse = max + std::log(sum);
  e.lse[at(row * s.heads + head)] = lse;
  double delta = 0;
  for (std::int64_t key = begin; key < end; ++key) {
    double& probability = p[at(key - begin)];
    probability = std::exp(probability - lse);
    for (std::int64_t i = 0; i < d; ++i) {
      e.o[at(row * s.o_stride + head * d + i)] += probability * v(key, i);
      delta += probability * g(i) * v(key, i);
    }
  }
  for (std::int64_t key = begin; key < end; ++key) {
    double product = 0;
    for (std::int64_t i = 0; i < d; ++i) { product += g(i) * v(key, i); }
    const double ds = p[at(key - begin)] * (product - delta) * scale;
    const std::int64_t to = ((sequence * s.key_length + key) * s.kv_heads + kv_head) * d;
    for (std::int64_t i = 0; i < d; ++i) {
      e.dq[at(row * s.o_stride + head * d + i)] += ds * k(key, i);
      e.dk[at(to + i)] += ds * q(i);
      e.dv[at(to + i)] += p[at(key - begin)] * g(i);
    }
  }
}

template <class T>
Expected expected(const Inputs<T>& in, const AttentionShape& s) {
  Expected e;
  const std::int64_t rows = s.batch * s.query_length;
  e.o.resize(at(rows * s.o_stride));
  e.dq.resize(e.o.size());
  e.lse.resize(at(rows * s.heads));
  e.dk.resize(at(s.batch * s.key_length * s.kv_heads * s.head_dim));
  e.dv.resize(e.dk.size());
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    for (std::int64_t query = 0; query < s.query_length; ++query) {
      for (std::int64_t head = 0; head < s.heads; ++head) {
        expect_row(e, in, s, sequence, query, head);
      }
    }
  }
  return e;
}

}  // namespace shardplan
