// Read in Megatron-LM core_v0.16.1 core/ssm/mamba_mixer.py (MambaMixer._ssm_training), with
// mamba_ssm 2.3.2 ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn,
// _mamba_chunk_scan_combined_{fwd,bwd}) and layernorm_gated.py (LayerNormFn). Letters: T tokens;
// I inner width, H heads, G groups, N states of a channel, each but N over t.
#include "estimator/frameworks/megatron/mixers/mamba.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/attention.h"
#include "estimator/frameworks/megatron/blocks/layer_ends.h"
#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

// Elements of all tokens on one rank.
struct MambaElements {
  std::int64_t inner = 0;   // I*T
  std::int64_t matrix = 0;  // G*N*T, of what enters the state, and of what reads it
  std::int64_t heads = 0;   // H*T
  std::int64_t groups = 0;  // G*T
  std::int64_t states = 0;  // I*N for each chunk
  std::int64_t pairs = 0;   // G*128*T: of a chunk's tokens

  std::int64_t convolved() const { return inner + 2 * matrix; }
  std::int64_t packed() const { return inner + convolved() + heads; }
};

MambaElements mamba_elements(const MegatronBlock& block) {
  const MambaSpec& mamba = block.job.model.mamba;
  const std::int64_t tokens = block.shape.tokens;
  const std::int64_t inner = div_ceil(mamba.inner, block.plan.tp);
  const std::int64_t groups = div_ceil(mamba.groups, block.plan.tp);
  const std::int64_t chunks =
      block.plan.micro_batch * div_ceil(block.job.sequence_length, kMambaChunk);
  return {.inner = tokens * inner,
          .matrix = tokens * groups * mamba.state,
          .heads = tokens * div_ceil(mamba.num_heads, block.plan.tp),
          .groups = tokens * groups,
          .states = chunks * inner * mamba.state,
          .pairs = chunks * groups * kMambaChunk * kMambaChunk};
}

constexpr Step kScan = Step::kForwardAttention;
constexpr Step kScanBack = Step::kBackwardAttention;
constexpr Life kInScan = {.born = kScan, .last_forward_use = kScan, .dies = kScanBack};
constexpr Life kBehindScan = {
    .born = kScan, .last_forward_use = kScan, .dies = Step::kBackwardProjection};

// One function convolves and scans, and saves its packed input and its output before the gate; the
// norm behind saves the gated output, the projection the normed one. Of several sequences the
// packed product and the scan's output are copied to batch first and back; the mixer's forward
// holds the product until it returns.
void add_saved(MegatronBlock& block, const MambaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const bool copies = block.plan.micro_batch > 1;
  rows.keep("mamba.packed", of.packed(), dtype,
            {.born = copies ? Step::kForwardLayout : Step::kForwardQkv,
             .last_forward_use = kScan,
             .dies = kScanBack},
            "(2I+2GN+H)*T: the product's output, batch first");
  rows.use("mamba.packed_sequence_first", copies ? of.packed() : 0, dtype, Step::kForwardQkv,
           Step::kForwardProjection, "(2I+2GN+H)*T: before it is copied to batch first");
  rows.keep("mamba.ungated_output", of.inner, dtype, kInScan, "I*T: of the scan, before its gate");
  rows.use("mamba.batch_first_output", copies ? of.inner : 0, dtype, kScan, kScan,
           "I*T: before it is copied to sequence first");
  rows.keep("mamba.output", of.inner, dtype, kBehindScan, "I*T: input of the norm behind");
  rows.keep("mamba.norm_statistics", of.groups, DType::kFp32, kBehindScan,
            "G*T: reciprocal root mean squares of groups, fp32");
  keep_where_saved(block, saves_input(block, adapts_mixer_output(block.job)), "mamba.normed_output",
                   of.inner, dtype,
                   {.born = kScan,
                    .last_forward_use = Step::kForwardProjection,
                    .dies = block.weight_step(Step::kBackwardProjection)},
                   "I*T: saved by the projection");
}

// _mamba_chunk_scan_combined_fwd: the convolution's output; decays and steps in fp32; states of
// chunks in fp32, then passed on in the products' type; products of a chunk's tokens in fp32.
void add_scan(MegatronBlock& block, const MambaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const Step front = Step::kForwardLayout;
  rows.use("mamba.convolved", of.convolved(), dtype, front, kScan, "(I+2GN)*T");
  rows.use("mamba.steps", 2 * of.heads, DType::kFp32, front, kScan,
           "2H*T: steps, and decays summed up within chunks");
  rows.use("mamba.fp32_states", of.states, DType::kFp32, front, front, "I*N for each 128 tokens");
  rows.use("mamba.states", of.states, dtype, front, kScan, "I*N for each 128 tokens");
  rows.use("mamba.pairs", of.pairs, DType::kFp32, kScan, kScan, "128*G*T");
}

// _mamba_chunk_scan_combined_bwd makes all of it again, and gradients of states in fp32 that it
// casts with them; then those of both matrices and of steps in fp32. The gradient of the packed
// product is one tensor from the first.
void add_scan_backward(MegatronBlock& block, const MambaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const Step front = Step::kBackwardLayout;
  rows.use("mamba.normed_gradient", of.inner, dtype, Step::kBackwardProjection,
           Step::kBackwardProjection, "I*T: of the norm's output");
  rows.use("mamba.output_gradient", of.inner, dtype, Step::kBackwardProjection, kScanBack,
           "I*T: of its input");
  rows.use("mamba.convolved_again", of.convolved(), dtype, kScanBack, front, "(I+2GN)*T");
  rows.use("mamba.convolved_gradient", of.convolved(), dtype, kScanBack, front, "(I+2GN)*T");
  rows.use("mamba.ungated_gradient", of.inner, dtype, kScanBack, front, "I*T");
  rows.use("mamba.fp32_steps_again", 2 * of.heads, DType::kFp32, kScanBack, front, "2H*T");
  rows.use("mamba.steps_again", of.heads, dtype, kScanBack, front, "H*T: cloned");
  rows.use("mamba.pairs_again", of.pairs, DType::kFp32, kScanBack, front, "128*G*T");
  rows.use("mamba.fp32_state_gradients", 2 * of.states, DType::kFp32, kScanBack, kScanBack,
           "2*I*N for each 128 tokens: states, and their gradients");
  rows.use("mamba.state_gradients", 2 * of.states, dtype, kScanBack, front,
           "2*I*N for each 128 tokens: both cast");
  rows.use("mamba.matrix_gradients", 2 * of.matrix, DType::kFp32, front, front, "2*G*N*T");
  rows.use("mamba.step_gradients", 3 * of.heads, DType::kFp32, front, front, "3H*T");
  rows.use("mamba.pair_gradients", of.pairs, DType::kFp32, front, front, "128*G*T");
  rows.use("mamba.packed_gradient", of.packed(), dtype, kScanBack,
           block.weight_step(Step::kBackwardQkv), "(2I+2GN+H)*T");
  rows.use("mamba.packed_gradient_sequence_first", block.plan.micro_batch > 1 ? of.packed() : 0,
           dtype, front, block.weight_step(Step::kBackwardQkv),
           "(2I+2GN+H)*T: copied for the product");
}

}  // namespace

void add_mamba(MegatronBlock& block) {
  const MambaElements of = mamba_elements(block);
  add_input_gathers(block);
  add_saved(block, of);
  add_scan(block, of);
  add_scan_backward(block, of);
  add_input_gradients(block, of.packed() / block.shape.tokens);
  add_projection(block);
  add_adapter(block, AdapterPlace::kMixerInput);
  add_adapter(block, AdapterPlace::kMixerOutput);
}

}  // namespace shardplan::megatron
