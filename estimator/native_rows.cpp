// Row tables of the native trainer. Provisional until it runs; what differs from Megatron's:
//   packed q, k and v with the rotary embedding in place, strides into attention, no copies;
//   residual add and norm in one kernel; norm outputs and the activation's output written again in
//   backward under selective recompute; a loss over chunks of tokens; products that add into the
//   main gradients; experts with a bounded number of received rows. Letters in block_rows.h.
#include "estimator/block_rows.h"
#include "estimator/outside_memory.h"

namespace shardplan {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes, of every tensor in an arena

struct NativeBlock {
  const Job& job;
  const Plan& plan;
  BlockShape shape;
  RowList rows{kAlignment};

  bool recomputes(bool RecomputeModules::*module) const {
    return plan.recompute.granularity == RecomputeGranularity::kSelective &&
           plan.recompute.modules.*module;
  }
  Step weight_step(Step own) const { return shape.delayed_weight ? Step::kWeight : own; }
  std::int64_t sequence() const { return shape.hidden * shape.sharded_tokens; }
};

void keep_or_write_again(NativeBlock& block, bool again, std::string_view name,
                         std::int64_t elements, Life life, Step replayed,
                         std::string_view formula) {
  if (again) {
    block.rows.recompute(name, elements, block.shape.dtype, life, replayed, formula);
  } else {
    block.rows.keep(name, elements, block.shape.dtype, life, formula);
  }
}

// Residual stream and norm in front of attention (forward steps `norm`, `product`).
struct NormNames {
  std::string_view input;
  std::string_view statistics;
  std::string_view output;
};

void add_norm(NativeBlock& block, const NormNames& names, Life input, Life output) {
  block.rows.keep(names.input, block.sequence(), block.shape.dtype, input,
                  "h*u: residual stream after the fused add and norm");
  block.rows.keep(names.statistics, block.shape.sharded_tokens, DType::kFp32,
                  {.born = output.born, .last_forward_use = output.born, .dies = input.dies},
                  "u: reciprocal root mean square, fp32");
  const bool again = block.recomputes(&RecomputeModules::layernorm);
  const Step replayed = output.dies == Step::kWeight ? Step::kBackwardOutput : output.dies;
  keep_or_write_again(block, again, names.output, block.sequence(), output, replayed,
                      "h*u: input of the next product; written again under recompute");
}

// Gathered input and partial sums of one pair of products under sequence parallelism.
struct PairSteps {
  Step first = Step::kForwardQkv;
  Step second = Step::kForwardProjection;
  Step backward_second = Step::kBackwardProjection;
  Step backward_first = Step::kBackwardQkv;
};
struct PairNames {
  std::string_view gathered;
  std::string_view partial;
  std::string_view gathered_gradient;
  std::string_view gathered_again;
  std::string_view partial_gradient;
};

void add_sequence_exchange(NativeBlock& block, const PairNames& names, const PairSteps& steps) {
  const BlockShape& s = block.shape;
  const std::int64_t full = s.hidden * s.tokens;
  if (!s.gathers_sequence) {
    return;
  }
  const Component comm = Component::kCommunication;
  block.rows.use_as(comm, names.gathered, full, s.dtype, steps.first, steps.first, "h*T");
  block.rows.use_as(comm, names.partial, full, s.dtype, steps.second, steps.second,
                    "h*T: before the reduce-scatter");
  block.rows.use_as(comm, names.gathered_gradient, full, s.dtype, steps.backward_second,
                    block.weight_step(steps.backward_second), "h*T");
  block.rows.use_as(comm, names.gathered_again, full, s.dtype, steps.backward_first,
                    block.weight_step(steps.backward_first), "h*T");
  block.rows.use_as(comm, names.partial_gradient, full, s.dtype, steps.backward_first,
                    steps.backward_first, "h*T: before the reduce-scatter");
}

AttentionShape attention_shape(const NativeBlock& block) {
  const Job& job = block.job;
  const std::int64_t c = block.plan.cp;
  const bool mla = job.model.attention == AttentionKind::kMla;
  AttentionShape shape{
      .batch = block.plan.micro_batch,
      .query_heads = block.shape.query_heads,
      .kv_heads = mla ? block.shape.query_heads : block.shape.key_value_heads,
      .query_length = div_ceil(job.sequence_length, c),
      .kv_length = div_ceil(job.sequence_length, c),
      .head_dim = mla ? job.model.mla.qk_nope_head_dim + job.model.mla.qk_rope_head_dim
                      : job.model.head_dim};
  if (c > 1 && block.plan.cp_method == CpMethod::kA2a) {
    shape.query_heads = div_ceil(shape.query_heads, c);
    shape.kv_heads = div_ceil(shape.kv_heads, c);
    shape.query_length = shape.kv_length = job.sequence_length;
  }
  if (c > 1 && block.plan.cp_method == CpMethod::kAllGather) {
    shape.kv_length = job.sequence_length;
  }
  return shape;
}

// Widths per token on one tp rank.
struct QkvWidths {
  std::int64_t packed = 0;
  std::int64_t key_value = 0;
  std::int64_t output = 0;
};

QkvWidths qkv_widths(const NativeBlock& block) {
  const BlockShape& s = block.shape;
  const MlaSpec& mla = block.job.model.mla;
  if (block.job.model.attention == AttentionKind::kMla) {
    const std::int64_t query = s.query_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
    const std::int64_t value = s.query_heads * mla.v_head_dim;
    return {.packed = 2 * query + value, .key_value = query + value, .output = value};
  }
  return {.packed = s.query_width + 2 * s.key_value_width,
          .key_value = 2 * s.key_value_width,
          .output = s.query_width};
}

void add_context_exchange(NativeBlock& block, const QkvWidths& widths) {
  const BlockShape& s = block.shape;
  const Component comm = Component::kCommunication;
  const std::int64_t key_value = s.tokens * widths.key_value;
  const std::int64_t c = block.plan.cp;
  const Step forward = Step::kForwardAttention;
  const Step backward = Step::kBackwardAttention;
  if (c == 1) {
    return;
  }
  switch (block.plan.cp_method) {
    case CpMethod::kRing:
      block.rows.use_as(comm, "attention.ring_key_values", 2 * key_value, s.dtype, forward, forward,
                        "2*KV: two buffers in turn");
      block.rows.use("attention.ring_accumulator", s.tokens * widths.output, DType::kFp32, forward,
                     forward, "a*d*T/t: partial output in fp32");
      block.rows.use_as(comm, "attention.ring_exchange", 4 * key_value, s.dtype, backward, backward,
                        "4*KV: keys, values and their gradients, two buffers each");
      break;
    case CpMethod::kAllGather:
      block.rows.use_as(comm, "attention.gathered_key_values", c * key_value, s.dtype, forward,
                        forward, "c*KV");
      block.rows.use_as(comm, "attention.gathered_again", 2 * c * key_value, s.dtype, backward,
                        backward, "2*c*KV: keys, values and their gradients");
      break;
    case CpMethod::kA2a:
      block.rows.use_as(comm, "attention.a2a_forward", s.tokens * widths.packed, s.dtype, forward,
                        forward, "(a+2k)*d*T/t");
      block.rows.use_as(comm, "attention.a2a_backward", s.tokens * widths.packed, s.dtype, backward,
                        backward, "(a+2k)*d*T/t");
      break;
  }
}

void add_attention(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const QkvWidths widths = qkv_widths(block);
  add_norm(block, {"input", "attention.norm_statistics", "attention.norm_output"},
           {.born = Step::kForwardInput,
            .last_forward_use = Step::kForwardProjection,
            .dies = Step::kBackwardNorm},
           {.born = Step::kForwardNorm,
            .last_forward_use = Step::kForwardQkv,
            .dies = block.weight_step(Step::kBackwardQkv)});
  if (block.job.model.attention == AttentionKind::kMla) {
    const MlaSpec& mla = block.job.model.mla;
    rows.keep(
        "attention.compressed",
        s.sharded_tokens * (2 * mla.q_lora_rank + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim),
        s.dtype,
        {.born = Step::kForwardQkv,
         .last_forward_use = Step::kForwardLayout,
         .dies = block.weight_step(Step::kBackwardQkv)},
        "(2*ql+2*kl+dr)*u: compressed vectors before and after their norms");
  }
  rows.keep("attention.packed_qkv", s.tokens * widths.packed, s.dtype,
            {.born = Step::kForwardQkv,
             .last_forward_use = Step::kForwardAttention,
             .dies = Step::kBackwardAttention},
            "(a+2k)*d*T/t: one buffer, rotary embedding in place");
  rows.keep("attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = Step::kBackwardAttention},
            "a*T/t: softmax statistics, fp32");
  rows.keep("attention.output", s.tokens * widths.output, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = block.weight_step(Step::kBackwardAttention)},
            "a*d*T/t");
  rows.use("attention.output_gradient", s.tokens * widths.output, s.dtype,
           Step::kBackwardProjection, Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.packed_qkv_gradient", s.tokens * widths.packed, s.dtype,
           Step::kBackwardAttention, block.weight_step(Step::kBackwardQkv), "(a+2k)*d*T/t");
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(cudnn_backward_workspace_bytes(attention_shape(block),
                                                      block.job.profile.deterministic_attention),
                       bytes_of(DType::kFp32)),
              DType::kFp32, Step::kBackwardAttention, Step::kBackwardAttention,
              "cuDNN 9 closed form");
  add_context_exchange(block, widths);
  add_sequence_exchange(
      block,
      {"attention.gathered_input", "attention.partial_output", "attention.gathered_gradient",
       "attention.gathered_input_again", "attention.partial_gradient"},
      {});
  rows.use("output_gradient", block.sequence(), s.dtype, Step::kBackwardOutput,
           Step::kBackwardInput, "h*u: gradient of the residual stream, updated in place");
  rows.use("attention.norm_gradient", block.sequence(), s.dtype, Step::kBackwardQkv,
           Step::kBackwardNorm, "h*u");
  rows.use("output", block.sequence(), s.dtype, Step::kForwardOutput, Step::kForwardOutput,
           "h*u: becomes the input of the next layer");
}

// One gated pair of products over `activations` = rows x width elements.
void add_pair(NativeBlock& block, bool is_shared, std::int64_t activations) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const Step fc1 = is_shared ? Step::kForwardFfnNorm : Step::kForwardFc1;
  const Step activation = is_shared ? Step::kForwardFfnNorm : Step::kForwardActivation;
  const Step fc2 = is_shared ? Step::kForwardFfnNorm : Step::kForwardFc2;
  const Step backward_fc2 = is_shared ? Step::kBackwardFfnNorm : Step::kBackwardFc2;
  const Step backward_activation = is_shared ? Step::kBackwardFfnNorm : Step::kBackwardActivation;
  const Step backward_fc1 = is_shared ? Step::kBackwardFfnNorm : Step::kBackwardFc1;
  const bool again =
      block.recomputes(&RecomputeModules::mlp) || block.recomputes(&RecomputeModules::moe_act);
  rows.keep(is_shared ? "shared.gate_up" : "ffn.gate_up", s.ffn_pieces * activations, s.dtype,
            {.born = fc1, .last_forward_use = activation, .dies = backward_activation}, "2f*T/t");
  keep_or_write_again(
      block, again, is_shared ? "shared.activation" : "ffn.activation", activations,
      {.born = activation, .last_forward_use = fc2, .dies = block.weight_step(backward_fc2)},
      backward_fc2, "f*T/t: written again in backward under recompute");
  rows.use(is_shared ? "shared.activation_gradient" : "ffn.activation_gradient", activations,
           s.dtype, backward_fc2, backward_activation, "f*T/t");
  rows.use(is_shared ? "shared.gate_up_gradient" : "ffn.gate_up_gradient",
           s.ffn_pieces * activations, s.dtype, backward_activation,
           block.weight_step(backward_fc1), "2f*T/t");
}

// Received rows are bounded by ceil(moe_buffer_factor * u * topk); counts stay on the device.
void add_experts(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const MoeSpec& moe = block.job.model.moe;
  RowList& rows = block.rows;
  const std::int64_t sent = s.sharded_tokens * moe.topk;
  const std::int64_t received = scaled(sent, block.plan.moe_buffer_factor) * block.plan.etp;
  const Component comm = Component::kCommunication;
  rows.keep("router.scores", 2 * moe.num_experts * s.sharded_tokens, DType::kFp32,
            {.born = Step::kForwardFfnNorm,
             .last_forward_use = Step::kForwardCombine,
             .dies = Step::kBackwardFfnNorm},
            "2*E*u: logits and probabilities, fp32");
  rows.use_as(comm, "experts.sent_tokens", s.hidden * sent, s.dtype, Step::kForwardDispatch,
              Step::kForwardDispatch, "topk*h*u");
  rows.keep("experts.received_tokens", s.hidden * received, s.dtype,
            {.born = Step::kForwardDispatch,
             .last_forward_use = Step::kForwardFc1,
             .dies = block.weight_step(Step::kBackwardFc1)},
            "moe_buffer_factor*topk*h*u*et: bounded, in expert order");
  rows.use("experts.output", s.hidden * received, s.dtype, Step::kForwardFc2, Step::kForwardCombine,
           "moe_buffer_factor*topk*h*u*et");
  rows.use_as(comm, "experts.returned_tokens", s.hidden * sent, s.dtype, Step::kForwardCombine,
              Step::kForwardCombine, "topk*h*u");
  rows.use_as(comm, "experts.sent_gradient", s.hidden * sent, s.dtype, Step::kBackwardCombine,
              Step::kBackwardCombine, "topk*h*u");
  rows.use_as(comm, "experts.received_gradient", s.hidden * received, s.dtype,
              Step::kBackwardCombine, block.weight_step(Step::kBackwardFc2),
              "moe_buffer_factor*topk*h*u*et");
  rows.use("experts.input_gradient", s.hidden * received, s.dtype, Step::kBackwardFc1,
           Step::kBackwardDispatch, "moe_buffer_factor*topk*h*u*et");
  rows.use_as(comm, "experts.returned_gradient", s.hidden * sent, s.dtype, Step::kBackwardDispatch,
              Step::kBackwardDispatch, "topk*h*u");
  add_pair(block, false, received * div_ceil(moe.expert_ffn, block.plan.etp));
  if (moe.shared_ffn > 0) {
    add_pair(block, true, s.tokens * div_ceil(moe.shared_ffn, block.plan.tp));
  }
}

void add_ffn(NativeBlock& block, bool is_moe) {
  const BlockShape& s = block.shape;
  const Step last = is_moe ? Step::kBackwardFfnNorm : block.weight_step(Step::kBackwardFc1);
  add_norm(block, {"ffn.input", "ffn.norm_statistics", "ffn.norm_output"},
           {.born = Step::kForwardProjection,
            .last_forward_use = Step::kForwardOutput,
            .dies = Step::kBackwardFfnNorm},
           {.born = Step::kForwardFfnNorm,
            .last_forward_use = is_moe ? Step::kForwardDispatch : Step::kForwardFc1,
            .dies = last});
  block.rows.use("ffn.norm_gradient", block.sequence(), s.dtype,
                 is_moe ? Step::kBackwardDispatch : Step::kBackwardFc1, Step::kBackwardFfnNorm,
                 "h*u");
  if (is_moe) {
    add_experts(block);
    return;
  }
  add_pair(block, false, s.tokens * div_ceil(block.job.model.ffn, block.plan.tp));
  add_sequence_exchange(block,
                        {"ffn.gathered_input", "ffn.partial_output", "ffn.gathered_gradient",
                         "ffn.gathered_input_again", "ffn.partial_gradient"},
                        {.first = Step::kForwardFc1,
                         .second = Step::kForwardFc2,
                         .backward_second = Step::kBackwardFc2,
                         .backward_first = Step::kBackwardFc1});
}

void add_embedding(NativeBlock& block) {
  const BlockShape& s = block.shape;
  block.rows.keep("token_ids", s.tokens, DType::kInt32,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardOutput,
                   .dies = Step::kBackwardInput},
                  "T: token ids");
  block.rows.use("output", block.sequence(), s.dtype, Step::kForwardOutput, Step::kForwardOutput,
                 "h*u");
  block.rows.use("output_gradient", block.sequence(), s.dtype, Step::kBackwardOutput,
                 Step::kBackwardInput, "h*u: added into the fp32 main gradient row by row");
  if (s.gathers_sequence) {
    const Component comm = Component::kCommunication;
    block.rows.use_as(comm, "partial_output", s.hidden * s.tokens, s.dtype, Step::kForwardOutput,
                      Step::kForwardOutput, "h*T: before the reduce-scatter");
    block.rows.use_as(comm, "gathered_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardInput,
                      Step::kBackwardInput, "h*T");
  }
}

// bf16 logits of one chunk of tokens, computed in forward for the statistics and again in backward,
// where the gradient is written over them.
void add_head(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t chunk = div_ceil(s.tokens, block.job.profile.cross_entropy_chunks);
  const Life life{.born = Step::kForwardLogits,
                  .last_forward_use = Step::kForwardLogits,
                  .dies = Step::kBackwardInput};
  rows.keep("final_norm.input", block.sequence(), s.dtype, life, "h*u");
  rows.keep("final_norm.statistics", s.sharded_tokens, DType::kFp32, life, "u: fp32");
  rows.keep("final_norm.output", block.sequence(), s.dtype,
            {.born = Step::kForwardLogits,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "h*u: input of the head product");
  rows.keep("loss.statistics", 3 * s.tokens, DType::kFp32,
            {.born = Step::kForwardLoss,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "3*T: maximum, sum and target logit, 12 bytes per token");
  rows.keep("labels", s.tokens, DType::kInt32,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLogits},
            "T");
  rows.use("loss.logits_chunk", chunk * s.local_vocab, s.dtype, Step::kForwardLogits,
           Step::kForwardLoss, "T/chunks*V/t");
  rows.use("loss.logits_chunk_again", chunk * s.local_vocab, s.dtype, Step::kBackwardLoss,
           Step::kBackwardLogits, "T/chunks*V/t: the gradient is written over the logits");
  rows.use("final_norm.output_gradient", block.sequence(), s.dtype, Step::kBackwardLoss,
           Step::kBackwardInput, "h*u");
  if (s.gathers_sequence) {
    const Component comm = Component::kCommunication;
    rows.use_as(comm, "head.gathered_input", s.hidden * s.tokens, s.dtype, Step::kForwardLogits,
                Step::kForwardLoss, "h*T");
    rows.use_as(comm, "head.gathered_input_again", s.hidden * s.tokens, s.dtype,
                Step::kBackwardLoss, Step::kBackwardLogits, "h*T");
    rows.use_as(comm, "head.partial_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardLoss,
                Step::kBackwardLogits, "h*T: before the reduce-scatter");
  }
}

void add_mtp_projection(NativeBlock& block) {
  block.rows.keep("mtp.projection_input", 2 * block.sequence(), block.shape.dtype,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardInput,
                   .dies = block.weight_step(Step::kBackwardInput)},
                  "2h*u: normed embedding and hidden state");
  block.rows.use("mtp.projection_input_gradient", 2 * block.sequence(), block.shape.dtype,
                 Step::kBackwardInput, Step::kBackwardInput, "2h*u");
}

}  // namespace

std::vector<BlockRow> native_rows(const Job& job, const Plan& plan, BlockKind kind) {
  NativeBlock block{.job = job, .plan = plan, .shape = block_shape(job, plan)};
  switch (kind) {
    case BlockKind::kEmbedding: add_embedding(block); break;
    case BlockKind::kHead: add_head(block); break;
    case BlockKind::kSentOutput: break;
    case BlockKind::kMtp:
      add_attention(block);
      add_ffn(block, job.model.layers.back().is_moe);
      add_mtp_projection(block);
      add_head(block);
      break;
    case BlockKind::kDenseLayer:
    case BlockKind::kMoeLayer:
      add_attention(block);
      add_ffn(block, kind == BlockKind::kMoeLayer);
      break;
  }
  return block.rows.rows;
}

}  // namespace shardplan
