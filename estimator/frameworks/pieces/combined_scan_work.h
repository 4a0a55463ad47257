// What mamba_ssm's combined convolution and scan of Mamba-2 works on: passes of its kernels, e
// bytes an element, and products. Sources: mamba_ssm 2.3.2
// ops/triton/{ssd_combined,ssd_chunk_state,
// ssd_state_passing,ssd_bmm,ssd_chunk_scan,layernorm_gated}.py.
#pragma once

#include "estimator/plan/layer_spec.h"
#include "estimator/plan/number.h"
#include "estimator/time/elementwise.h"

namespace shardplan {

// Passes over each channel of the convolution: 2; backward again 2, and its gradient 3.
inline Passes combined_scan_channels(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 5 * e}};
}

// Passes over each value: states read it 1, the scan reads value and gate and writes the output
// before and behind the gate 4, the norm 2. Backward the norm 3; states again 1; the gate reads
// itself, output and gradient and writes two 5; gradients of states 1, of values 3, of both
// matrices 2, of a chunk's pairs 2 and of decays 2.
inline Passes combined_scan_values(double e) {
  return {.forward = {.fused = 7 * e}, .backward = {.fused = 19 * e}};
}

// Passes over each element of both matrices: states and pairs of one, pairs and the output of the
// other, 2; backward the same again 2, states' and values' gradients 2, and their own in fp32
// written and added to what pairs give, 8 and 2.
inline Passes combined_scan_matrices(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 6 * e + 8}};
}

// Passes over each state: written and read in fp32, passed on in the products' type and read.
// Backward again in fp32 twice, its gradient in fp32 written and read, both cast and read.
inline Passes combined_scan_states(double e) {
  return {.forward = {.fused = 8 + 2 * e}, .backward = {.fused = 16 + 8 + 4 * e}};
}

// Passes over each pair of a chunk's tokens, in fp32: written and read; backward written, read by
// gradients of values and of decays, its gradient written and read twice.
inline constexpr Passes kCombinedScanPairs = {.forward = {.fused = 8}, .backward = {.fused = 24}};

// Products of one token: of a chunk's pairs for each group; for each head into the state, of pairs
// with values, and out of the state.
inline double combined_scan_flops(const MambaSpec& mamba, std::int64_t chunk_tokens) {
  const double chunk = number(chunk_tokens);
  const double state = number(mamba.state);
  const double inner = number(mamba.inner);
  return 2 * chunk * state * number(mamba.groups) + 2 * inner * (2 * state + chunk);
}

}  // namespace shardplan
