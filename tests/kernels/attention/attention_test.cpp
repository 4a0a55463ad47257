#include "kernels/attention/call.h"

#include <doctest/doctest.h>

#include <string>

#include "kernels/attention/cudnn.h"
#include "kernels/attention/tensor_cores.h"
#include "tests/kernels/attention/reference.h"

namespace shardplan {
namespace {

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

// Forward and backward by prepared calls; what is written starts as not a number.
struct CallResults {
  std::vector<__nv_bfloat16> o, dq, dk, dv;
  std::vector<float> lse;
  std::string own_because;
};

template <class T>
std::vector<T> poison(std::int64_t size) {
  return std::vector<T>(at(size), from_double<T>(std::numeric_limits<double>::quiet_NaN()));
}

CallResults call(const AttentionLibrary& library, const Inputs<__nv_bfloat16>& in,
                 const AttentionShape& s, GradientSum sum, AttentionOrder order) {
  using T = __nv_bfloat16;
  const std::int64_t kv_width = s.kv_heads * s.head_dim;
  const std::int64_t rows = s.batch * s.query_length;
  const AttentionForward forward(library, AttentionTypes::kBf16, s);
  const AttentionBackward backward(
      library, AttentionTypes::kBf16, s,
      {.dq_stride = s.o_stride, .dkv_stride = 2 * kv_width, .dkv_sum = sum}, order);
  ScopedStream stream;
  DeviceBuffer<T> q(in.q), kv(in.kv), dout(in.dout), o(poison<T>(rows * s.o_stride)),
      dq(poison<T>(rows * s.o_stride));
  const bool adds = sum == GradientSum::kAccumulate;
  const std::int64_t dkv_size = s.batch * s.key_length * 2 * kv_width;
  DeviceBuffer<T> dkv(adds ? std::vector<T>(at(dkv_size), from_double<T>(1)) : poison<T>(dkv_size));
  DeviceBuffer<float> lse(poison<float>(rows * s.heads));
  const std::int64_t bytes = std::max(forward.workspace_bytes(), backward.workspace_bytes());
  DeviceBuffer<float> workspace(poison<float>(bytes / 4 + 64));
  const T* k = kv.data() + s.heads * s.head_dim;
  const T* v = k + kv_width;
  forward.run(o.data(), lse.data(), q.data(), k, v, workspace.data(), stream);
  backward.run(dq.data(), dkv.data(), dkv.data() + kv_width, dout.data(), q.data(), k, v, o.data(),
               lse.data(), workspace.data(), stream);
  CallResults results{.o = o.host(),
                      .dq = dq.host(),
                      .dk = {},
                      .dv = {},
                      .lse = lse.host(),
                      .own_because = forward.own_because() + backward.own_because()};
  const std::vector<T> both = dkv.host();
  for (std::int64_t i = 0; i < dkv_size; ++i) {
    (i / kv_width % 2 == 0 ? results.dk : results.dv).push_back(both[at(i)]);
  }
  return results;
}

// By the kernels that run where warpgroups are not.
CallResults call_warps(const Inputs<__nv_bfloat16>& in, const AttentionShape& s) {
  using T = __nv_bfloat16;
  const std::int64_t kv_width = s.kv_heads * s.head_dim;
  const std::int64_t rows = s.batch * s.query_length;
  ScopedStream stream;
  DeviceBuffer<T> q(in.q), kv(in.kv), dout(in.dout), o(poison<T>(rows * s.o_stride)),
      dq(poison<T>(rows * s.o_stride)), dk(poison<T>(s.batch * s.key_length * kv_width)),
      dv(poison<T>(s.batch * s.key_length * kv_width));
  DeviceBuffer<float> lse(poison<float>(rows * s.heads));
  const T* k = kv.data() + s.heads * s.head_dim;
  const T* v = k + kv_width;
  attention_forward_on_tensor_cores(o.data(), lse.data(), q.data(), k, v, s, stream);
  CallResults results{
      .o = o.host(), .dq = {}, .dk = {}, .dv = {}, .lse = lse.host(), .own_because = {}};
  std::vector<float> delta(at(rows * s.heads));
  for (std::size_t i = 0; i < results.o.size(); ++i) {
    const auto product = to_double(results.o[i]) * to_double(in.dout[i]);
    delta[i / at(s.head_dim)] += static_cast<float>(product);
  }
  DeviceBuffer<float> own_delta(delta);
  attention_backward_on_tensor_cores<T>({dq.data(),
                                         dk.data(),
                                         dv.data(),
                                         own_delta.data(),
                                         dout.data(),
                                         q.data(),
                                         k,
                                         v,
                                         lse.data(),
                                         {.dq_stride = s.o_stride, .dkv_stride = kv_width}},
                                        s, stream);
  results.dq = dq.host();
  results.dk = dk.host();
  results.dv = dv.host();
  return results;
}

void check_call(const AttentionLibrary& library, const Inputs<__nv_bfloat16>& in, Expected want,
                const AttentionShape& s, GradientSum sum, AttentionOrder order) {
  CAPTURE(s.query_length);
  CAPTURE(s.key_length);
  CAPTURE(s.head_dim);
  CAPTURE(s.window);
  for (std::vector<double>* gradient : {&want.dk, &want.dv}) {
    for (double& value : *gradient) { value += sum == GradientSum::kAccumulate ? 1 : 0; }
  }
  const CallResults got = call(library, in, s, sum, order);
  CAPTURE(got.own_because);
  CHECK(relative_error(got.o, want.o) < 1e-2);
  CHECK(relative_error(got.lse, want.lse) < 1e-5);
  if (s.key_length > 1) {
    CHECK(relative_error(got.dq, want.dq) < 1e-2);
    CHECK(relative_error(got.dk, want.dk) < 1e-2);
  }
  CHECK(relative_error(got.dv, want.dv) < 1e-2);
  if (order == AttentionOrder::kRepeatable) {
    const CallResults again = call(library, in, s, sum, order);
    CHECK(num_differing(got.o, again.o) == 0);
    CHECK(num_differing(got.dq, again.dq) == 0);
    CHECK(num_differing(got.dk, again.dk) == 0);
    CHECK(num_differing(got.dv, again.dv) == 0);
  }
  // Masks that context parallelism and whole sequences need are cuDNN's where it is there; of
  // backward passes that repeat or add to sums it has those that our kernels do not run on
  // warpgroups.
  const bool usual =
      s.window == 0 && s.query_length > 1 && s.head_dim % 64 == 0 && s.head_dim <= 128 &&
      (s.query_position == s.key_length - s.query_length || s.query_position >= s.key_length - 1);
  if (library.has_cudnn() && usual) {
    const bool adds = sum == GradientSum::kAccumulate;
    const bool repeats = order == AttentionOrder::kRepeatable;
    const std::string own = adds      ? "gradients of keys are added to sums"
                            : repeats ? "repeatable without cuDNN's workspace"
                                      : "";
    CHECK(got.own_because == (runs_on_warpgroups(s) ? own : ""));
  }
}

}  // namespace

TEST_CASE(
    "prepared attention is that of double precision, by cuDNN where it is and by own kernels") {
  const AttentionLibrary fastest;
  const AttentionLibrary own(AttentionKernels::kOwn);
  MESSAGE(fastest.description());
  for (const AttentionShape& row : kShapes) {
    const AttentionShape s = packed(row);
    const Inputs<__nv_bfloat16> in = random_inputs<__nv_bfloat16>(s);
    const Expected want = expected(in, s);
    for (const AttentionLibrary* library : {&fastest, &own}) {
      for (const GradientSum sum : {GradientSum::kOverwrite, GradientSum::kAccumulate}) {
        check_call(*library, in, want, s, sum, AttentionOrder::kAny);
      }
      check_call(*library, in, want, s, GradientSum::kOverwrite, AttentionOrder::kRepeatable);
    }
  }
}

TEST_CASE("queries in the midst of the keys run on own kernels, and the call says why") {
  const AttentionShape midst = packed({.query_length = 40,
                                       .key_length = 90,
                                       .heads = 2,
                                       .kv_heads = 1,
                                       .head_dim = 64,
                                       .query_position = 10});
  const AttentionLibrary library;
  const Inputs<__nv_bfloat16> in = random_inputs<__nv_bfloat16>(midst);
  check_call(library, in, expected(in, midst), midst, GradientSum::kOverwrite,
             AttentionOrder::kAny);
  CHECK(AttentionForward(library, AttentionTypes::kBf16, midst).own_because() != "");
  CHECK(AttentionForward(library, AttentionTypes::kFloat, midst).own_because() != "");
}

TEST_CASE(
    "without a mask every query sees every key: a window behind the diagonal is not cuDNN's") {
  const auto mask = [](std::int64_t query_position, std::int64_t window) {
    return mask_of(
        {.query_length = 64, .key_length = 64, .query_position = query_position, .window = window});
  };
  CHECK(mask(0, 0) == CudnnMask::kTopLeft);
  CHECK(mask(0, 16) == CudnnMask::kTopLeft);
  CHECK(mask(64, 0) == CudnnMask::kNone);
  CHECK(mask(64, 128) == CudnnMask::kNone);  // the last query stands at 127 and sees key 0
  CHECK(mask(64, 127) == CudnnMask::kOther);
  CHECK(mask(32, 0) == CudnnMask::kOther);
}

TEST_CASE("a repeatable backward pass on warpgroups needs a float for each row of each head") {
  const AttentionShape s = packed({.batch = 2,
                                   .query_length = 2048,
                                   .key_length = 2048,
                                   .heads = 32,
                                   .kv_heads = 8,
                                   .head_dim = 128});
  if (!runs_on_warpgroups(s)) {
    return;
  }
  const AttentionLibrary library;
  const AttentionGradientShape gradients{
      .dq_stride = s.o_stride, .dkv_stride = 8 * 128, .dkv_sum = GradientSum::kAccumulate};
  CHECK(AttentionBackward(library, AttentionTypes::kBf16, s, gradients, AttentionOrder::kRepeatable)
            .workspace_bytes() == 2 * 2048 * 32 * 4);
}

TEST_CASE("all kernels agree on the heads of Llama-3-8B, and our own repeat") {
  const AttentionShape s = packed(
      {.query_length = 2048, .key_length = 2048, .heads = 32, .kv_heads = 8, .head_dim = 128});
  const Inputs<__nv_bfloat16> in = random_inputs<__nv_bfloat16>(s);
  const AttentionLibrary fastest;
  const AttentionLibrary own(AttentionKernels::kOwn);
  const CallResults a = call(own, in, s, GradientSum::kOverwrite, AttentionOrder::kAny);
  const auto doubles = [](const auto& values) {
    std::vector<double> converted;
    converted.reserve(values.size());
    for (const auto value : values) { converted.push_back(to_double(value)); }
    return converted;
  };
  for (const CallResults& b :
       {call(fastest, in, s, GradientSum::kOverwrite, AttentionOrder::kAny), call_warps(in, s)}) {
    CHECK(relative_error(a.o, doubles(b.o)) < 1e-2);
    CHECK(relative_error(a.lse, doubles(b.lse)) < 1e-5);
    CHECK(relative_error(a.dq, doubles(b.dq)) < 1e-2);
    CHECK(relative_error(a.dk, doubles(b.dk)) < 1e-2);
    CHECK(relative_error(a.dv, doubles(b.dv)) < 1e-2);
  }
  const CallResults again = call(own, in, s, GradientSum::kOverwrite, AttentionOrder::kAny);
  CHECK(num_differing(a.o, again.o) == 0);
  CHECK(num_differing(a.lse, again.lse) == 0);
  CHECK(num_differing(a.dq, again.dq) == 0);
  CHECK(num_differing(a.dk, again.dk) == 0);
  CHECK(num_differing(a.dv, again.dv) == 0);
}

TEST_CASE("the kernels for GPUs without warpgroups give attention of double precision too") {
  for (const AttentionShape& row : kShapes) {
    if (row.head_dim != 64 && row.head_dim != 128) {
      continue;
    }
    const AttentionShape s = packed(row);
    CAPTURE(s.query_length);
    CAPTURE(s.head_dim);
    const Inputs<__nv_bfloat16> in = random_inputs<__nv_bfloat16>(s);
    const Expected want = expected(in, s);
    const CallResults got = call_warps(in, s);
    CHECK(relative_error(got.o, want.o) < 1e-2);
    CHECK(relative_error(got.lse, want.lse) < 1e-5);
    if (s.key_length > 1) {
      CHECK(relative_error(got.dq, want.dq) < 1e-2);
      CHECK(relative_error(got.dk, want.dk) < 1e-2);
    }
    CHECK(relative_error(got.dv, want.dv) < 1e-2);
  }
}

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
