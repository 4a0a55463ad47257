// Every number counts how often one element is read or written, as in kernels.cpp. Sources: those
// of mamba.cpp.
#include "estimator/frameworks/megatron/mixers/mamba_kernels.h"

#include "estimator/frameworks/megatron/mixers/mamba.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_work.h"

namespace shardplan::megatron {
namespace {

// Passes over each channel of the convolution: 2; backward again 2, and its gradient 3.
Passes channel_kernels(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 5 * e}};
}

// Passes over each value: states read it 1, the scan reads value and gate and writes the output
// before and behind the gate 4, the norm 2. Backward the norm 3; states again 1; the gate reads
// itself, output and gradient and writes two 5; gradients of states 1, of values 3, of both
// matrices 2, of a chunk's pairs 2 and of decays 2.
Passes value_kernels(double e) {
  return {.forward = {.fused = 7 * e}, .backward = {.fused = 19 * e}};
}

// Passes over each element of both matrices: states and pairs of one, pairs and the output of the
// other, 2; backward the same again 2, states' and values' gradients 2, and their own in fp32
// written and added to what pairs give, 8 and 2.
Passes matrix_kernels(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 6 * e + 8}};
}

// Passes over each state: written and read in fp32, passed on in the products' type and read.
// Backward again in fp32 twice, its gradient in fp32 written and read, both cast and read.
Passes state_kernels(double e) {
  return {.forward = {.fused = 8 + 2 * e}, .backward = {.fused = 16 + 8 + 4 * e}};
}

// Passes over each pair of a chunk's tokens, in fp32: written and read; backward written, read by
// gradients of values and of decays, its gradient written and read twice.
constexpr Passes kPairs = {.forward = {.fused = 8}, .backward = {.fused = 24}};

// Products of one token: of a chunk's pairs for each group; for each head into the state, of pairs
// with values, and out of the state.
double scan_flops(const MambaSpec& mamba) {
  const double chunk = number(kMambaChunk);
  const double state = number(mamba.state);
  const double inner = number(mamba.inner);
  return 2 * chunk * state * number(mamba.groups) + 2 * inner * (2 * state + chunk);
}

}  // namespace

// Backward makes states and pairs again and has two products for each of forward's.
BlockTime mamba_scan(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens) / number(context.plan.tp);
  const double values = tokens * number(mamba.inner);
  const double matrices = 2 * tokens * number(mamba.groups * mamba.state);
  const double chunk = number(kMambaChunk);
  BlockTime time = memory_bound(context, values + matrices, channel_kernels(e));
  add(time, memory_bound(context, values, value_kernels(e)));
  add(time, memory_bound(context, matrices, matrix_kernels(e)));
  add(time, memory_bound(context, values * number(mamba.state) / chunk, state_kernels(e)));
  add(time, memory_bound(context, tokens * number(mamba.groups) * chunk, kPairs));
  BlockTime products;
  products.forward_flops = tokens * scan_flops(mamba);
  const GpuSpec& gpu = context.gpu();
  products.forward_s = products.forward_flops / (gpu.bf16_flops_per_s * gpu.constants->gemm_share);
  products.backward_input_s = 3 * products.forward_s;
  note(context, PieceKind::kProduct, products);
  add(time, products);
  return time;
}

}  // namespace shardplan::megatron
