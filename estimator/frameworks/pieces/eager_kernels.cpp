#include "estimator/frameworks/pieces/eager_kernels.h"

namespace shardplan {

Passes eager_swiglu(double e) {
  return {.forward = {.streamed = 5 * e}, .backward = {.streamed = 9 * e}};
}

Passes eager_activation(double e) {
  return {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}};
}

Passes with_head_norms(const Passes& rotary, const ModelSpec& model) {
  return model.qk_norm ? rotary + rotary : rotary;
}

Passes loss_of_cast_logits(const KernelBytes& reductions) {
  return {.forward = KernelBytes{.converted = 8 + 8} + reductions, .backward = {.converted = 8}};
}

KernelBytes added_gradient(const Plan& plan) {
  return {.converted = activation_element_bytes(plan) + 2 * gradient_element_bytes(plan)};
}

TableGradientKernels touched_table_gradient(const Plan& plan) {
  return {.token = {.fused = activation_element_bytes(plan) + 2 * gradient_element_bytes(plan)}};
}

}  // namespace shardplan
