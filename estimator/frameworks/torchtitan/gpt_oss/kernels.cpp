#include "estimator/frameworks/torchtitan/gpt_oss/kernels.h"

#include "estimator/plan/number.h"

namespace shardplan::torchtitan {

// models/gpt_oss/model/model.py, apply_rotary_emb. Forward: products with cosine and sine 4,
// negation and cat of the halves 3, sum 3; backward products 4, negation 1, halves in zeros 4,
// sums 6. The gradients of wq's and wk's biases read 1.
Passes halves_rotation_kernels(double e) {
  return {.forward = {.streamed = 7 * e, .rearranged = 3 * e},
          .backward = {.streamed = 11 * e, .rearranged = 5 * e}};
}

// The output times its factors 2; backward two products 3 and 2, the sum of one 1, the copy by
// heads
// 2. Statistics, fp32 of a head: scaled, shifted, their sigmoid and its cast 30 bytes; backward as
// much. The gradients of wo's and wv's biases read 1 each.
Passes sink_kernels(const ModelSpec& model, double e) {
  const double statistics = 30 / number(model.head_dim);
  const double query = number(model.num_heads * model.head_dim);
  const double key = number(model.num_kv_heads * model.head_dim);
  return {.forward = {.streamed = 2 * e + statistics},
          .backward = {.streamed = 6 * e + statistics + e * (number(model.hidden) + key) / query,
                       .rearranged = 2 * e}};
}

// models/gpt_oss/model/moe.py, _run_experts_grouped_mm and swiglu. Forward, of gate and up: the
// bias repeated 2, put before zeros 4, added 6; each half bounded 4, every second element; the
// product with 1.702 2, sigmoid 2, product 3, one added 2, product 3. Backward: four products 12,
// sigmoid 3, product 2, sum 3; bounds, whose comparisons write a byte, 11; halves in zeros 8, their
// sum 6; rows of the bias added up by expert.
Passes bounded_gate_kernels(const GpuSpec& gpu, double e) {
  constexpr double kHalves = 2;
  return {.forward = {.streamed = 24 * e, .rearranged = 4 * e},
          .backward = KernelBytes{.streamed = 41 * e, .rearranged = 4 * e} +
                      at_share(gpu, 3 * kHalves * e, &TimeConstants::index_add_share)};
}

// Repeated 1, put before zeros 2, added 3; rows added up by expert.
Passes second_bias_kernels(const GpuSpec& gpu) {
  return {.forward = {.streamed = 6},
          .backward = at_share(gpu, 3, &TimeConstants::index_add_share)};
}

}  // namespace shardplan::torchtitan
