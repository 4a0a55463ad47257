// Read in Megatron-LM core_v0.16.1 core/ssm/mamba_mixer.py (MambaMixer._ssm_training), with
// mamba_ssm 2.3.2 ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn,
// _mamba_chunk_scan_combined_{fwd,bwd}) and layernorm_gated.py (LayerNormFn); context parallelism
// in core/ssm/mamba_context_parallel.py. Letters: T tokens of this rank; I inner width, H heads, G
// groups, N states of a channel, each but N over t; c ranks that exchange tokens for heads, R
// copies of each group's matrices that they need, 1 where every rank gets a group.
#include "estimator/frameworks/megatron/mixers/mamba.h"

#include <algorithm>

#include "estimator/frameworks/megatron/blocks/layer_ends.h"
#include "estimator/frameworks/megatron/mixers/mixer_ends.h"

namespace shardplan::megatron {
namespace {

// Elements on one rank: of its part of the sequence, or of the whole with its part of the heads.
struct MambaElements {
  std::int64_t inner = 0;    // I*T
  std::int64_t product = 0;  // (2I+2GN+H)*T: what the product in front makes
  std::int64_t matrix = 0;   // R*G*N*T, of what enters the state, and of what reads it
  std::int64_t heads = 0;    // H*T
  std::int64_t groups = 0;   // G*T
  std::int64_t states = 0;   // I/c*N for each chunk
  std::int64_t pairs = 0;    // R*G/c*128*128 for each chunk

  std::int64_t convolved() const { return inner + 2 * matrix; }
  std::int64_t packed() const { return inner + convolved() + heads; }
};

MambaElements mamba_elements(const MegatronBlock& block) {
  const MambaSpec& mamba = block.job.model.mamba;
  const std::int64_t c = block.plan.cp;
  const std::int64_t tokens = block.shape.tokens;
  const std::int64_t inner = div_ceil(mamba.inner, block.plan.tp);
  const std::int64_t groups = div_ceil(mamba.groups, block.plan.tp);
  const std::int64_t heads = div_ceil(mamba.num_heads, block.plan.tp);
  const std::int64_t groups_of_rank = scanned_groups(block.job, block.plan);
  const std::int64_t chunks =
      block.plan.micro_batch * div_ceil(block.job.sequence_length, kMambaChunk);
  return {.inner = tokens * inner,
          .product = tokens * (2 * inner + 2 * groups * mamba.state + heads),
          .matrix = tokens * c * groups_of_rank * mamba.state,
          .heads = tokens * heads,
          .groups = tokens * groups,
          .states = chunks * div_ceil(inner, c) * mamba.state,
          .pairs = chunks * groups_of_rank * kMambaChunk * kMambaChunk};
}

constexpr Step kScan = Step::kForwardAttention;
constexpr Step kScanBack = Step::kBackwardAttention;
constexpr Life kInScan = {.born = kScan, .last_forward_use = kScan, .dies = kScanBack};
constexpr Life kBehindScan = {
    .born = kScan, .last_forward_use = kScan, .dies = Step::kBackwardProjection};

// Where tokens are exchanged for heads, between what a block without context parallelism does.
constexpr Step kHeadsForth = Step::kForwardKeyNorm;
constexpr Step kTokensBack = Step::kForwardRingRound;
constexpr Step kTokensBackAgain = Step::kBackwardKeyValues;
constexpr Step kHeadsForthAgain = Step::kBackwardQueryNorm;

// One function convolves and scans, and saves its packed input and its output before the gate; the
// norm behind saves the gated output, the projection the normed one. Of several sequences the
// packed product and the scan's output are copied to batch first and back; the mixer's forward
// holds the product until it returns.
void add_saved(MegatronBlock& block, const MambaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const bool copies = block.plan.micro_batch > 1;
  const bool exchanges = block.plan.cp > 1;
  const Step made = exchanges ? kHeadsForth : Step::kForwardQkv;
  rows.keep(
      "mamba.packed", of.packed(), dtype,
      {.born = copies ? Step::kForwardLayout : made, .last_forward_use = kScan, .dies = kScanBack},
      "(2I+2RGN+H)*T: the product's output, batch first");
  rows.use("mamba.packed_sequence_first", copies ? of.packed() : 0, dtype, made,
           Step::kForwardProjection, "(2I+2RGN+H)*T: before it is copied to batch first");
  rows.keep("mamba.ungated_output", of.inner, dtype, kInScan, "I*T: of the scan, before its gate");
  rows.use("mamba.batch_first_output", copies ? of.inner : 0, dtype, kScan, kScan,
           "I*T: before it is copied to sequence first");
  rows.keep("mamba.output", of.inner, dtype,
            {.born = exchanges ? kTokensBack : kScan,
             .last_forward_use = exchanges ? kTokensBack : kScan,
             .dies = kBehindScan.dies},
            "I*T: input of the norm behind");
  rows.keep("mamba.norm_statistics", of.groups, DType::kFp32, kBehindScan,
            "G*T: reciprocal root mean squares of groups, fp32");
  keep_mixer_output(block, "mamba.normed_output", of.inner, "I*T: saved by the projection");
}

// Five parts of the product are exchanged one after the other and held until all are put together,
// which is then put into the order of the sequence. The scan's output is held while it is put into
// the other order, exchanged and laid out anew. Backward the same the other way.
void add_exchanges(MegatronBlock& block, const MambaElements& of) {
  if (block.plan.cp == 1) {
    return;
  }
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const Component comm = Component::kCommunication;
  rows.use("mamba.product", of.product, dtype, Step::kForwardQkv, kHeadsForth,
           "(2I+2GN+H)*T: of this rank's tokens, before it is exchanged");
  rows.use_as(comm, "mamba.exchanged_parts", 2 * of.packed(), dtype, kHeadsForth, kHeadsForth,
              "2*(2I+2RGN+H)*T: parts that were exchanged, and all of them put together");
  rows.use("mamba.scanned", of.inner, dtype, kScan, kTokensBack,
           "I*T: of all tokens, before it is exchanged");
  rows.use_as(comm, "mamba.exchanged_output", 2 * of.inner, dtype, kTokensBack, kTokensBack,
              "2I*T: in the order of the exchange, and exchanged");
  rows.use_as(comm, "mamba.exchanged_output_gradient", of.inner, dtype, kTokensBackAgain,
              kTokensBackAgain, "I*T: the gradient on its way, beside what it is made of");
  rows.use_as(comm, "mamba.exchanged_gradients", of.packed() + of.inner, dtype, kHeadsForthAgain,
              kHeadsForthAgain,
              "(3I+2RGN+H)*T: gradients of the parts, exchanged, the last of them twice");
  rows.use("mamba.product_gradient", of.product, dtype, Step::kBackwardQkvGather,
           block.weight_step(Step::kBackwardQkv), "(2I+2GN+H)*T: all parts put together");
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
  const bool exchanges = block.plan.cp > 1;
  const bool copies = block.plan.micro_batch > 1;
  const Step product = block.weight_step(Step::kBackwardQkv);
  rows.use("mamba.packed_gradient", of.packed(), dtype, kScanBack, exchanges ? front : product,
           "(2I+2RGN+H)*T");
  rows.use("mamba.packed_gradient_sequence_first", exchanges || copies ? of.packed() : 0, dtype,
           exchanges ? kHeadsForthAgain : front, exchanges ? kHeadsForthAgain : product,
           "(2I+2RGN+H)*T: copied for the product, or for the exchange");
}

}  // namespace

std::int64_t scanned_groups(const Job& job, const Plan& plan) {
  return std::max<std::int64_t>(1, div_ceil(job.model.mamba.groups, plan.tp) / plan.cp);
}

void add_mamba(MegatronBlock& block) {
  const MambaElements of = mamba_elements(block);
  add_input_gathers(block);
  add_saved(block, of);
  add_exchanges(block, of);
  add_scan(block, of);
  add_scan_backward(block, of);
  add_mixer_ends(block, of.product / block.shape.tokens);
}

}  // namespace shardplan::megatron
