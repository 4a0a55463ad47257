#include "kernels/attention.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

// Lengths that no tile divides, shared key heads, packed rows, chunks in the middle of a sequence.
const AttentionShape kShapes[] = {
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
    {.batch = 2,
     .query_length = 37,
     .key_length = 45,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 24,
     .query_position = 8},
    {.query_length = 40, .key_length = 40, .heads = 2, .kv_heads = 1, .head_dim = 256, .window = 7},
};

// q, k, v lie side by side in one row.
AttentionShape packed(AttentionShape shape) {
  shape.q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  shape.kv_stride = shape.q_stride;
  shape.o_stride = shape.heads * shape.head_dim;
  return shape;
}

template <class T>
struct Inputs {
  std::vector<T> q, kv, dout;
};

template <class T>
Inputs<T> random_inputs(const AttentionShape& s) {
  return {random_values<T>(s.batch * s.query_length * s.q_stride, 1),
          random_values<T>(s.batch * s.key_length * s.kv_stride, 2),
          random_values<T>(s.batch * s.query_length * s.o_stride, 3)};
}

struct Expected {
  std::vector<double> o, lse, dq, dk,
      dv;  // dq with o's rows, dk and dv [rows, kv_heads * head_dim]
};

std::size_t at(std::int64_t index) {
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

template <class G>
struct Results {
  std::vector<float> lse;
  std::vector<G> dq, dk, dv;
};

// Runs forward and backward; the gradients of keys and values start at 1 and are added to.
template <class T, class G>
Results<G> run(const Inputs<T>& in, const AttentionShape& s, std::vector<T>& o) {
  ScopedStream stream;
  DeviceBuffer<T> q(in.q), kv(in.kv), dout(in.dout), out(s.batch * s.query_length * s.o_stride);
  DeviceBuffer<float> lse(s.batch * s.query_length * s.heads),
      delta(s.batch * s.query_length * s.heads);
  const T* k = kv.data() + s.heads * s.head_dim;
  const T* v = k + s.kv_heads * s.head_dim;
  attention_forward(out.data(), lse.data(), q.data(), k, v, s, stream);
  const std::int64_t kv_width = s.kv_heads * s.head_dim;
  const std::vector<G> ones(at(s.batch * s.key_length * kv_width), from_double<G>(1));
  DeviceBuffer<G> dq(s.batch * s.query_length * s.o_stride), dk(ones), dv(ones);
  attention_backward(
      dq.data(), dk.data(), dv.data(), delta.data(), dout.data(), q.data(), k, v, out.data(),
      lse.data(), s,
      {.dq_stride = s.o_stride, .dkv_stride = kv_width, .dkv_sum = GradientSum::kAccumulate},
      stream);
  o = out.host();
  return {lse.host(), dq.host(), dk.host(), dv.host()};
}

template <class T, class G>
void check_shapes(double tolerance) {
  for (const AttentionShape& row : kShapes) {
    const AttentionShape s = packed(row);
    CAPTURE(s.query_length);
    CAPTURE(s.head_dim);
    const Inputs<T> in = random_inputs<T>(s);
    Expected want = expected(in, s);
    for (double& value : want.dk) { value += 1; }
    for (double& value : want.dv) { value += 1; }
    std::vector<T> o;
    const Results<G> got = run<T, G>(in, s, o);
    CHECK(relative_error(o, want.o) < tolerance);
    CHECK(relative_error(got.lse, want.lse) < 1e-5);
    // A lone key has no gradient: its probability is 1 whatever the score.
    if (s.key_length > 1) {
      CHECK(relative_error(got.dq, want.dq) < tolerance);
    }
    CHECK(relative_error(got.dk, want.dk) < tolerance);
    CHECK(relative_error(got.dv, want.dv) < tolerance);
    std::vector<T> o_again;
    const Results<G> again = run<T, G>(in, s, o_again);
    CHECK(num_differing(o, o_again) == 0);
    CHECK(num_differing(got.dq, again.dq) == 0);
    CHECK(num_differing(got.dk, again.dk) == 0);
    CHECK(num_differing(got.dv, again.dv) == 0);
  }
}

}  // namespace

TEST_CASE("attention in fp32 is that of double precision, forward and backward, and repeats") {
  check_shapes<float, float>(2e-6);
}

TEST_CASE("attention in bf16 is that of double precision, forward and backward, and repeats") {
  check_shapes<__nv_bfloat16, __nv_bfloat16>(1e-2);
}

TEST_CASE("attention in bf16 adds gradients up in float") {
  check_shapes<__nv_bfloat16, float>(1e-2);
}

}  // namespace shardplan
