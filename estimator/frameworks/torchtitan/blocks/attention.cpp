// Attention of a torchtitan layer (models/llama3/model/model.py, Attention and apply_rotary_emb),
// with what autograd, or the compiled block, keeps of it.
#include "estimator/frameworks/torchtitan/blocks/attention.h"

#include "estimator/frameworks/pieces/attention_workspace.h"
#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {
namespace {

constexpr Step kReplayed = Step::kBackwardOutput;

// Sizes of one microbatch on a rank, in elements.
struct AttentionSizes {
  std::int64_t query = 0;
  std::int64_t key = 0;  // of keys alone
  std::int64_t statistics = 0;
};

AttentionSizes sizes_of(const TitanBlock& block) {
  const BlockShape& s = block.shape;
  return {.query = s.query_width * s.tokens,
          .key = s.key_value_width * s.tokens,
          .statistics = s.query_heads * s.tokens};
}

// cuDNN's workspace with that part of the queries and of the keys of a rank.
std::int64_t workspace_bytes(const TitanBlock& block, std::int64_t query_parts,
                             std::int64_t key_parts) {
  const std::int64_t length = div_ceil(block.job.sequence_length, block.plan.cp);
  return cudnn_backward_workspace_bytes({.batch = block.plan.micro_batch,
                                         .query_heads = block.shape.query_heads,
                                         .kv_heads = block.shape.key_value_heads,
                                         .query_length = length / query_parts,
                                         .kv_length = length / key_parts,
                                         .head_dim = block.job.model.head_dim},
                                        block.job.profile.deterministic_attention);
}

void add_normed_input(TitanBlock& block) {
  const BlockShape& s = block.shape;
  const Life life{.born = Step::kForwardNorm,
                  .last_forward_use = Step::kForwardQkv,
                  .dies = Step::kBackwardQkv};
  // Under autocast each of the three products casts its input for itself.
  const std::int64_t copies = block.is_autocast() && !block.is_compiled() ? 3 : 1;
  const std::int64_t elements = copies * (s.gathers_sequence ? block.gathered() : block.sequence());
  const std::string_view formula =
      "h*T (gathered under tp; three casts under autocast): input of the products";
  block.keep_or_write_again("attention.norm_statistics", s.sharded_tokens, DType::kFp32,
                            {.born = Step::kForwardNorm,
                             .last_forward_use = Step::kForwardNorm,
                             .dies = Step::kBackwardNorm},
                            "u: reciprocal root mean square");
  if (block.compiles_blocks() && s.gathers_sequence && !block.has_whole_layers()) {
    block.keep_or_write_again("attention.norm_output", block.sequence(), s.dtype, life,
                              "h*u: gathered again in backward");
    return;
  }
  block.keep_or_write_again("attention.norm_output", elements, s.dtype, life, formula);
  if (copies == 3) {
    block.rows.split_last({elements / 3, elements / 3, elements / 3});
  }
}

// Qwen 3's norms over heads. Fused, a norm keeps its input and statistics; under autocast, whose
// weight is fp32, operations of their own keep input and result in fp32 (ATen rms_norm_composite).
void add_head_norms(TitanBlock& block, const AttentionSizes& sizes) {
  const BlockShape& s = block.shape;
  const Life life{.born = Step::kForwardQkv,
                  .last_forward_use = Step::kForwardLayout,
                  .dies = Step::kBackwardLayout};
  const bool is_fused = !block.is_autocast() || block.is_compiled();
  const std::int64_t wide = is_fused ? 0 : sizes.query + sizes.key;
  if (is_fused) {
    block.keep_or_write_again("attention.key_projection", sizes.key, s.dtype, life,
                              "k*d*T/t: input of the norm of keys");
    if (!block.recomputes_ops() || block.compiles_parts()) {
      block.keep_or_write_again("attention.query_projection", sizes.query, s.dtype, life,
                                "a*d*T/t: input of the norm of queries");
    }
  }
  block.keep_or_write_again("attention.head_norm_input", wide, DType::kFp32, life,
                            "(a+k)*d*T/t: fp32 under autocast");
  block.keep_or_write_again("attention.head_norm_result", wide, DType::kFp32, life,
                            "(a+k)*d*T/t: fp32 under autocast, before the weight");
  block.keep_or_write_again("attention.head_norm_statistics",
                            (s.query_heads + s.key_value_heads) * s.tokens, DType::kFp32, life,
                            "(a+k)*T/t: reciprocal root mean square");
}

// FSDP casts the table that a block is called with (torch _fsdp_state.py, _pre_forward), and a
// checkpoint holds what it is called with to the end of backward. With cp positions are picked.
void add_cosines_and_sines(TitanBlock& block) {
  const BlockShape& s = block.shape;
  const std::int64_t head_dim = block.job.model.head_dim;
  const bool is_ring = block.plan.cp > 1;
  const bool checkpoints = block.plan.recompute.granularity != RecomputeGranularity::kNone;
  if (block.is_autocast() || is_ring) {
    const std::int64_t length = is_ring ? s.tokens : block.job.sequence_length;
    block.keep_or_write_again("attention.cosines_and_sines", 2 * length * head_dim, s.dtype,
                              {.born = Step::kForwardLayout,
                               .last_forward_use = Step::kForwardLayout,
                               .dies = Step::kBackwardLayout},
                              "2*d*s (2*d*T with cp): cast in every layer");
  }
  if (block.is_autocast()) {
    return;
  }
  constexpr std::string_view kName = "attention.rotary_cast";
  const std::int64_t elements = 2 * block.job.sequence_length * head_dim;
  if (is_ring && !checkpoints) {
    block.rows.use(kName, elements, s.dtype, Step::kForwardInput, Step::kForwardOutput, "2*d*s");
    return;
  }
  block.rows.keep(kName, elements, s.dtype,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardOutput,
                   .dies = checkpoints ? Step::kBackwardInput : Step::kBackwardLayout},
                  "2*d*s: cosines and sines, cast for the block");
  block.rows.rows.back().outlives_recompute = true;
}

// Queries and keys of Qwen 3 are turned in bf16, one operation after the other.
void add_rotation_by_halves(TitanBlock& block, const AttentionSizes& sizes) {
  const BlockShape& s = block.shape;
  add_cosines_and_sines(block);
  if (block.is_compiled()) {
    block.rows.use("attention.rotation_gradient", sizes.query + sizes.key, DType::kFp32,
                   Step::kBackwardLayout, Step::kBackwardLayout, "(a+k)*d*T/t: fp32, to the norms");
    block.rows.split_last({sizes.query, sizes.key});
    return;
  }
  block.rows.use("attention.rotation", 3 * sizes.query + sizes.key, s.dtype, Step::kForwardLayout,
                 Step::kForwardLayout, "(3a+k)*d*T/t: normed, and both products of queries");
  block.rows.split_last({sizes.query, sizes.key, sizes.query, sizes.query});
  // Under autocast the norm's gradients, in fp32, of which the last finds its result freed.
  const DType dtype = block.is_autocast() ? DType::kFp32 : s.dtype;
  const std::int64_t parts = block.is_autocast() ? 4 : 3;
  block.rows.use("attention.rotation_gradient", parts * sizes.query, dtype, Step::kBackwardLayout,
                 Step::kBackwardLayout, "3*a*d*T/t: of both halves and of the product with sines");
}

// Llama's rotation runs in fp32 on complex views. A compiled layer that runs operators again picks
// the angles again and lets them go before it needs most.
void add_complex_rotation(TitanBlock& block, const AttentionSizes& sizes) {
  if (block.plan.cp > 1 && !(block.is_compiled() && block.recomputes_ops())) {
    block.keep_or_write_again("attention.rotary_angles",
                              block.shape.tokens * block.job.model.head_dim, DType::kFp32,
                              {.born = Step::kForwardLayout,
                               .last_forward_use = Step::kForwardLayout,
                               .dies = Step::kBackwardLayout},
                              "d*T: complex64, picked by position (reshape_for_broadcast)");
  }
  block.rows.use("attention.rotation", 2 * (sizes.query + sizes.key), DType::kFp32,
                 Step::kForwardLayout, Step::kForwardLayout, "2*(a+k)*d*T/t: fp32 in and out");
  block.rows.split_last({sizes.query, sizes.key, sizes.query, sizes.key});
  block.rows.use("attention.rotation_gradient", 2 * (sizes.query + sizes.key), DType::kFp32,
                 Step::kBackwardLayout, Step::kBackwardLayout, "2*(a+k)*d*T/t: fp32 in and out");
  block.rows.split_last({sizes.query, sizes.key, sizes.query, sizes.key});
}

void add_rotary(TitanBlock& block, const AttentionSizes& sizes) {
  const BlockShape& s = block.shape;
  const Life life{.born = Step::kForwardLayout,
                  .last_forward_use = Step::kForwardAttention,
                  .dies = Step::kBackwardAttention};
  if (block.norms_query_key()) {
    add_head_norms(block, sizes);
    add_rotation_by_halves(block, sizes);
  } else {
    add_complex_rotation(block, sizes);
  }
  block.keep_or_write_again("attention.query", sizes.query, s.dtype, life, "a*d*T/t: rotated");
  block.keep_or_write_again("attention.key", sizes.key, s.dtype, life, "k*d*T/t: rotated");
}

// Ring attention of torch.distributed.tensor with all-gathered keys and values: backward keeps fp32
// sums, gathers again and exchanges fp32 gradients (_templated_ring_attention_backward). At its
// largest it holds the second round's outputs beside the first's. The last rank of the ring runs
// whole queries over half the keys, the first half the queries over all keys.
void add_ring(TitanBlock& block, const AttentionSizes& sizes) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t c = block.plan.cp;
  const Step backward = Step::kBackwardAttention;
  const Component comm = Component::kCommunication;
  rows.use_as(comm, "attention.gathered_key_values", 2 * c * sizes.key, s.dtype,
              Step::kForwardAttention, Step::kForwardAttention, "2c*k*d*T/t");
  rows.use("attention.ring_output", 3 * sizes.query, DType::kFp32, Step::kForwardAttention,
           Step::kForwardAttention, "3*a*d*T/t: merged fp32 output and its parts");
  rows.split_last({sizes.query, sizes.query, sizes.query});
  const std::int64_t element = bytes_of(s.dtype);
  const std::int64_t last = element * (sizes.query + sizes.key) + workspace_bytes(block, 1, 2);
  const std::int64_t first =
      element * (sizes.query / 2 + 2 * sizes.key) + workspace_bytes(block, 2, 1);
  const std::int64_t second = std::max(first, last);
  if (block.is_compiled()) {
    const std::int64_t exchanged = 4 * sizes.key * bytes_of(DType::kFp32);
    const std::int64_t used_up = 4 * sizes.key * element;
    const std::int64_t rounds =
        std::max(workspace_bytes(block, 1, 1), exchanged + second - used_up);
    rows.use("attention.ring_rounds", div_ceil(rounds, element), s.dtype, backward, backward,
             "cuDNN's workspace of the first round; or of the second with its dQ and 4k*d*T/t in "
             "fp32, sent and received, where keys and values have been freed");
    return;
  }
  rows.use_as(comm, "attention.gathered_again", (2 * c + 2) * sizes.key, s.dtype, backward,
              backward, "(2c+2)*k*d*T/t: this rank's keys and values, and all ranks'");
  rows.split_last({2 * sizes.key, 2 * c * sizes.key});
  rows.use("attention.ring_gradients", sizes.query + 2 * sizes.key, DType::kFp32, backward,
           backward, "(a+2k)*d*T/t: fp32 sums of all rounds");
  rows.split_last({sizes.query, sizes.key, sizes.key});
  rows.use_as(comm, "attention.ring_exchange", 4 * sizes.key, DType::kFp32, backward, backward,
              "4k*d*T/t: fp32 gradients of keys and values, sent and received");
  rows.split_last({2 * sizes.key, 2 * sizes.key});
  rows.use("attention.second_round", div_ceil(second, element), s.dtype, backward, backward,
           "dQ, dK, dV and cuDNN's workspace of a round, half queries or half keys");
}

// A checkpoint by operations keeps every round's output and merges them again.
void add_merged_rounds(TitanBlock& block, const AttentionSizes& sizes, const Life& saved) {
  if (block.recomputes_ops()) {
    block.rows.keep("attention.round_outputs", (block.plan.cp + 1) * sizes.query / 2,
                    block.shape.dtype,
                    {.born = Step::kForwardAttention,
                     .last_forward_use = Step::kForwardProjection,
                     .dies = kReplayed},
                    "(c+1)/2*a*d*T/t: of the first round, and of half the queries in the others");
  }
  block.keep_or_write_again("attention.output", sizes.query, block.shape.dtype, saved, "a*d*T/t");
}

void add_core(TitanBlock& block, const AttentionSizes& sizes) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const Life saved{.born = Step::kForwardAttention,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardAttention};
  const Life value{.born = Step::kForwardQkv,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  if (block.compiles_parts()) {
    block.keep_or_write_again("attention.value", sizes.key, s.dtype, value, "k*d*T/t");
  } else {
    rows.keep("attention.value", sizes.key, s.dtype, value, "k*d*T/t");
  }
  rows.keep("attention.log_sum_exp", sizes.statistics, DType::kFp32, saved, "a*T/t");
  if (block.compiles_parts() && block.plan.cp > 1) {
    add_merged_rounds(block, sizes, saved);
  } else {
    rows.keep("attention.output", sizes.query, s.dtype, saved, "a*d*T/t");
  }
  if (block.recomputes_ops() && !block.compiles_parts()) {
    rows.keep("attention.query_projection", sizes.query, s.dtype,
              {.born = Step::kForwardQkv,
               .last_forward_use = Step::kForwardLayout,
               .dies = block.norms_query_key() && (!block.is_autocast() || block.is_compiled())
                           ? Step::kBackwardLayout
                           : kReplayed},
              "a*d*T/t: first matmul, saved");
  }
  if (block.plan.cp > 1 && (!block.compiles_blocks() || block.has_whole_layers())) {
    block.keep_or_write_again("attention.output_copy", sizes.query, s.dtype,
                              {.born = Step::kForwardAttention,
                               .last_forward_use = Step::kForwardProjection,
                               .dies = Step::kBackwardProjection},
                              "a*d*T/t: contiguous, input of the projection");
  }
  rows.use("attention.output_gradient", sizes.query, s.dtype, Step::kBackwardProjection,
           Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.qkv_gradient", sizes.query + 2 * sizes.key, s.dtype, Step::kBackwardAttention,
           Step::kBackwardQkv, "(a+2k)*d*T/t");
  rows.split_last({sizes.query, sizes.key, sizes.key});
  if (block.plan.cp > 1) {
    add_ring(block, sizes);
    return;
  }
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(workspace_bytes(block, 1, 1), bytes_of(DType::kFp32)), DType::kFp32,
              Step::kBackwardAttention, Step::kBackwardAttention, "cuDNN 9 closed form");
}

// What the compiled block keeps of the ring: rotated keys and everything gathered, which the
// partitioner does not compute again.
void add_compiled_ring(TitanBlock& block, const AttentionSizes& sizes) {
  const Life life{.born = Step::kForwardLayout,
                  .last_forward_use = Step::kForwardAttention,
                  .dies = Step::kBackwardAttention};
  constexpr std::string_view kGathered = "attention.gathered_kept";
  const std::int64_t elements = 2 * block.plan.cp * sizes.key;
  constexpr std::string_view kFormula = "2c*k*d*T/t: all ranks' keys and values";
  if (block.compiles_parts()) {
    block.keep_or_write_again(kGathered, elements, block.shape.dtype, life, kFormula);
    return;
  }
  block.rows.keep(kGathered, elements, block.shape.dtype, life, kFormula);
  if (block.recomputes_ops()) {
    block.rows.keep("attention.key_kept", sizes.key, block.shape.dtype, life, "k*d*T/t: rotated");
  }
}

}  // namespace

void add_titan_attention(TitanBlock& block, BlockKind kind) {
  RowList& rows = block.rows;
  const AttentionSizes sizes = sizes_of(block);
  // A pipeline's chunk begins with what it received, in a buffer of its own, or with the
  // embedding's output; its backward likewise, until a first gradient is added to that.
  const bool is_received = block.is_pipelined() && kind == BlockKind::kLastLayer;
  rows.keep("input", block.is_pipelined() && kind == BlockKind::kFirstLayer ? 0 : block.sequence(),
            block.residual(),
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardNorm},
            "h*u: residual stream (fp32 under autocast)");
  add_normed_input(block);
  add_rotary(block, sizes);
  add_core(block, sizes);
  if (block.plan.cp > 1 && block.is_compiled()) {
    add_compiled_ring(block, sizes);
  }
  add_titan_attention_ends(block, is_received);
}

// What a sequence divided over tp needs around the products, and their gradients.
void add_titan_attention_ends(TitanBlock& block, bool is_received) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t projection = s.hidden * s.query_width;
  const std::int64_t qkv = s.hidden * (s.query_width + 2 * s.key_value_width);
  if (s.gathers_sequence) {
    const Component comm = Component::kCommunication;
    rows.use_as(comm, "attention.partial_output", block.gathered(), s.dtype,
                Step::kForwardProjection, Step::kForwardProjection, "h*T: before reduce-scatter");
    rows.use_as(comm, "attention.gathered_gradient", block.gathered(), s.dtype,
                Step::kBackwardProjection, Step::kBackwardProjection, "h*T");
    if (block.recomputes_ops()) {
      rows.keep("attention.reduced_output", block.sequence(), s.dtype,
                {.born = Step::kForwardProjection,
                 .last_forward_use = Step::kForwardProjection,
                 .dies = kReplayed},
                "h*u: output of the reduce-scatter, saved");
    }
  }
  rows.use("attention.projection_gradient", projection, block.weight_gradient(),
           Step::kBackwardProjection, Step::kBackwardInput, "h*a*d/t: gradient of wo");
  rows.use("attention.qkv_weight_gradients", qkv, block.weight_gradient(), Step::kBackwardQkv,
           Step::kBackwardInput, "h*(a+2k)*d/t: gradients of wq, wk, wv");
  rows.split_last(
      {s.hidden * s.query_width, s.hidden * s.key_value_width, s.hidden * s.key_value_width});
  rows.use("attention.input_gradients", 2 * block.gathered(), s.dtype, Step::kBackwardQkv,
           Step::kBackwardQkv, "2h*T: of two products and their sum");
  rows.split_last({block.gathered(), block.gathered()});
  rows.use("attention.norm_gradient", block.sequence(), block.residual(), Step::kBackwardNorm,
           Step::kBackwardNorm, "h*u");
  rows.use("output_gradient", block.sequence(), block.residual(),
           is_received ? Step::kBackwardFfnNorm : Step::kBackwardOutput, Step::kBackwardInput,
           "h*u: gradient of the residual stream");
  rows.use("output", block.sequence(), block.residual(), Step::kForwardOutput, Step::kForwardOutput,
           "h*u: becomes the input of the next layer");
}

}  // namespace shardplan::torchtitan
