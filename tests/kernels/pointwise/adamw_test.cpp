#include "kernels/pointwise/adamw.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr float kClip = 0.25F;
constexpr AdamWSettings kSettings = {
    .rate = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .decay = 0.1F, .step = 7};

struct Reference {
  std::vector<double> master, m, v;
};

template <class M, class G>
Reference reference(const std::vector<float>& master, const std::vector<M>& m,
                    const std::vector<M>& v, const std::vector<G>& gradient) {
  Reference want;
  const double beta1 = kSettings.beta1;
  const double beta2 = kSettings.beta2;
  for (std::size_t i = 0; i < master.size(); ++i) {
    const double g = to_double(gradient[i]) * static_cast<double>(kClip);
    want.m.push_back(beta1 * to_double(m[i]) + (1 - beta1) * g);
    want.v.push_back(beta2 * to_double(v[i]) + (1 - beta2) * g * g);
    const double m_hat = want.m[i] / (1 - std::pow(beta1, 7));
    const double v_hat = want.v[i] / (1 - std::pow(beta2, 7));
    const double value = master[i];
    want.master.push_back(value - static_cast<double>(kSettings.rate) *
                                      (m_hat / (std::sqrt(v_hat) + 1e-8) +
                                       static_cast<double>(kSettings.decay) * value));
  }
  return want;
}

template <class T, class M, class G>
void check_size(std::int64_t size) {
  CAPTURE(size);
  const std::vector<float> master = random_values<float>(size, 1);
  const std::vector<M> m = random_values<M>(size, 2, 0, 0.1);
  std::vector<M> v = random_values<M>(size, 3, 0, 0.1);
  for (M& value : v) { value = from_double<M>(std::abs(to_double(value))); }
  const std::vector<G> gradient = random_values<G>(size, 4);
  const Reference want = reference(master, m, v, gradient);

  ScopedStream stream;
  DeviceBuffer<float> dev_master(master), clip(std::vector<float>{kClip});
  DeviceBuffer<T> weight(size);
  DeviceBuffer<M> dev_m(m), dev_v(v);
  DeviceBuffer<G> dev_gradient(gradient);
  adamw(weight.data(), dev_master.data(), dev_m.data(), dev_v.data(), dev_gradient.data(),
        clip.data(), size, kSettings, stream);
  CHECK(relative_error(dev_master.host(), want.master) < 1e-6);
  // Stochastic rounding errs by up to a whole last place, twice as far as rounding to nearest.
  const double moment_error = sizeof(M) == 2 ? 2 * kRoundingError<M> : 1e-6;
  CHECK(relative_error(dev_m.host(), want.m) < moment_error);
  CHECK(relative_error(dev_v.host(), want.v) < moment_error);
  std::vector<T> rounded;
  for (const float value : dev_master.host()) {
    rounded.push_back(from_double<T>(static_cast<double>(value)));
  }
  CHECK(num_differing(weight.host(), rounded) == 0);
}

}  // namespace

TEST_CASE("AdamW equals a double-precision reference for every mix of types") {
  for (const std::int64_t size : {8, 2056, 100000}) {
    check_size<float, float, float>(size);
    check_size<__nv_bfloat16, float, float>(size);
    check_size<__nv_bfloat16, float, __nv_bfloat16>(size);
    check_size<__nv_bfloat16, __nv_bfloat16, float>(size);
    check_size<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(size);
  }
}

TEST_CASE("AdamW's bf16 second moment decays at its rate over 200 steps without a gradient") {
  constexpr std::int64_t kSize = 65536;
  const std::vector<__nv_bfloat16> ones(kSize, from_double<__nv_bfloat16>(1));
  ScopedStream stream;
  DeviceBuffer<float> master(std::vector<float>(kSize, 0.0F)), clip(std::vector<float>{1});
  DeviceBuffer<__nv_bfloat16> m(ones), v(ones),
      gradient(std::vector<__nv_bfloat16>(kSize, from_double<__nv_bfloat16>(0))), weight(kSize);
  // 0.999: a step moves v by a quarter of bf16's last place; rounding to nearest would never move.
  AdamWSettings settings = {.rate = 0, .beta1 = 0.999F, .beta2 = 0.999F};
  for (settings.step = 1; settings.step <= 200; ++settings.step) {
    adamw(weight.data(), master.data(), m.data(), v.data(), gradient.data(), clip.data(), kSize,
          settings, stream);
  }
  double mean = 0;
  for (const __nv_bfloat16 value : v.host()) { mean += to_double(value) / kSize; }
  CHECK(mean == doctest::Approx(std::pow(0.999, 200)).epsilon(1e-3));
}

}  // namespace shardplan
