// Row tables of Hugging Face's Llama and Qwen3 in eager PyTorch, as DeepSpeed trains them. Source:
// transformers 4.57 models/llama/modeling_llama.py (LlamaRMSNorm, LlamaAttention, LlamaMLP),
// models/qwen3/modeling_qwen3.py (Qwen3Attention), integrations/sdpa_attention.py,
// loss/loss_utils.py (ForCausalLMLoss), and for gradients deepspeed_buckets.h. No tensor, sequence
// or pipeline parallelism. Letters in block_rows.h; N parameters, S data-parallel ranks, R the
// bucket's elements.
#include <algorithm>
#include <stdexcept>

#include "estimator/deepspeed_buckets.h"
#include "estimator/eager_rows.h"

namespace shardplan {
namespace {

struct EagerBlock {
  const Job& job;
  const Plan& plan;
  BlockShape s;
  RowList& rows;
  DeepspeedBuckets buckets = deepspeed_buckets(job, plan);

  std::int64_t sequence() const { return s.hidden * s.tokens; }
  AllocationStream stream(AllocationStream of_its_own) const {
    return overlaps_collectives(job, plan) ? of_its_own : AllocationStream::kCompute;
  }
};

// Gradients that a microbatch makes and those after it find: is_gradient.
void keep_for_the_step(EagerBlock& b, Component component, std::string_view name,
                       std::int64_t elements, Step born, std::string_view formula) {
  if (elements > 0) {
    b.rows.use_as(component, name, elements, b.s.dtype, born, Step::kWeight, formula).is_gradient =
        true;
  }
}

// A weight's gradient. ZeRO-1 leaves it in .grad until the last microbatch has added its own;
// ZeRO-2 and 3 copy it into the bucket at once (grad_handling_hook).
void add_weight_gradient(EagerBlock& b, std::string_view name, std::int64_t elements, Step born) {
  const bool stays = b.plan.zero == 1;
  if (stays) {
    keep_for_the_step(b, Component::kGradients, "gradients.of_weights", elements, born,
                      "of the weights, until the step");
  }
  b.rows.use(name, !stays || num_microbatches(b.job, b.plan) > 1 ? elements : 0, b.s.dtype, born,
             born,
             stays ? "made again by later microbatches, added and freed"
                   : "of the weight, before it is copied into the bucket");
}

// The bucket fills from `begin` on. ZeRO-2 makes it anew in every backward pass, ZeRO-1 in the
// first one of a step; ZeRO-3 has it for good (deepspeed_state.cpp). Where it is full, `reduces`,
// it is copied flat once more, `flat` elements, and ZeRO-2 copies what this rank keeps; here where
// a weight's gradient has just been made.
void add_bucket(EagerBlock& b, Step begin, bool reduces, std::int64_t flat,
                std::initializer_list<Step> reductions) {
  if (b.plan.zero == 1) {
    return;
  }
  const DeepspeedBuckets& buckets = b.buckets;
  if (b.plan.zero == 2) {
    b.rows.use_as(Component::kCommunication, "reduce_bucket", buckets.elements, b.s.dtype, begin,
                  kLastBackward,
                  "R, twice with overlap_comm: contiguous ipg buffer of this backward pass");
    b.rows.use_as(Component::kGradients, "gradients.partition", reduces ? buckets.partition : 0,
                  b.s.dtype, begin, kLastBackward,
                  "whole tensors that this rank's N/S reaches into, of this microbatch");
  }
  for (const Step step : reductions) {
    b.rows
        .use_as(Component::kCommunication, "reduce_bucket.flat_copy", reduces ? flat : 0, b.s.dtype,
                step, step, "runs of several ranks, at most R or a larger tensor: copied flat")
        .stream = b.stream(AllocationStream::kReduce);
  }
}

// The norm in fp32: the cast input (saved by the square and by the product), its statistics, the
// normed value in bf16 (saved by the product with the weight), the output (saved by what follows).
void add_norm(EagerBlock& b, std::string_view cast, std::string_view normed,
              std::string_view output, std::string_view gradient, Step forward, Step last_use,
              Step backward) {
  b.rows.keep(cast, b.sequence() + 2 * b.s.tokens, DType::kFp32,
              {.born = forward, .last_forward_use = forward, .dies = backward},
              "(h+2)*T: input in fp32, mean of squares and its root");
  b.rows.keep(normed, b.sequence(), b.s.dtype,
              {.born = forward, .last_forward_use = forward, .dies = backward},
              "h*T: cast back, saved by the product with the weight");
  b.rows.keep(output, b.sequence(), b.s.dtype,
              {.born = forward, .last_forward_use = last_use, .dies = backward},
              "h*T: input of the linear layers");
  b.rows.use(gradient, 5 * b.sequence(), DType::kFp32, backward, backward,
             "5h*T: gradients of the input and of its square, and what the square's is made of");
}

// The norm of queries or of keys, as add_norm's; the projection's output goes when it has returned,
// and its own is what the rotary embedding takes.
void add_head_norm(EagerBlock& b, std::string_view cast, std::string_view normed,
                   std::string_view gradient, std::int64_t heads, Step backward) {
  const std::int64_t rows = heads * b.s.tokens;
  const std::int64_t elements = b.job.model.head_dim * rows;
  const Life saved{
      .born = Step::kForwardQkv, .last_forward_use = Step::kForwardQkv, .dies = backward};
  b.rows.keep(cast, elements + rows, DType::kFp32, saved,
              "(d+1)*a*T of queries, (d+1)*k*T of keys: input in fp32, root of the mean square");
  b.rows.keep(normed, elements, b.s.dtype, saved,
              "a*d*T, k*d*T: cast back, saved by the product with the weight");
  b.rows.use(gradient, 5 * elements, DType::kFp32, backward, backward,
             "5a*d*T, 5k*d*T: gradients of the input and of its square, and what the square's is "
             "made of");
}

// Without a mask on CUDA the attention itself takes fewer key and value heads (use_gqa_in_sdpa), so
// that nothing repeats them; its backward makes their gradients for every query head and adds them
// up (flash-attention csrc/flash_attn/flash_api.cpp mha_bwd: dk_expanded, dv_expanded).
void add_attention(EagerBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = s.query_width * s.tokens;
  const std::int64_t key_value = 2 * s.key_value_width * s.tokens;
  const Life saved{.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  const bool is_grouped = b.job.model.num_heads != b.job.model.num_kv_heads;
  rows.use("attention.projections", query + key_value / 2, s.dtype, Step::kForwardQkv,
           Step::kForwardProjection, "(a+k)*d*T: q and k, held by the forward's local variables");
  if (b.job.model.qk_norm) {
    add_head_norm(b, "attention.query_norm_fp32", "attention.query_normed",
                  "attention.query_norm_gradients", s.query_heads, Step::kBackwardQkv);
    add_head_norm(b, "attention.key_norm_fp32", "attention.key_normed",
                  "attention.key_norm_gradients", s.key_value_heads, Step::kBackwardQkvGather);
  }
  rows.use("attention.rotary_parts", 2 * query, s.dtype, Step::kForwardLayout, Step::kForwardLayout,
           "2*a*d*T: rotate_half and the products with cos and sin");
  rows.keep("attention.qkv", query + key_value, s.dtype, saved,
            "(a+2k)*d*T: q and k after the rotary embedding, v as projected");
  rows.keep("attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32, saved, "a*T");
  rows.keep("attention.output", query, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "a*d*T: saved by the attention and by the projection");
  rows.use("attention.projection_output", b.sequence(), s.dtype, Step::kForwardProjection,
           Step::kForwardProjection, "h*T");
  rows.use("attention.gradients", 2 * query + key_value, s.dtype, Step::kBackwardAttention,
           Step::kBackwardAttention, "2*(a+k)*d*T: of output, q, k and v");
  rows.use("attention.expanded_gradients", is_grouped ? 2 * query : 0, s.dtype,
           Step::kBackwardAttention, Step::kBackwardAttention,
           "2*a*d*T: of k and v for every query head, before they are added up");
  rows.use("attention.query_accumulator", query, DType::kFp32, Step::kBackwardAttention,
           Step::kBackwardAttention, "a*d*T: dQ in fp32");
  rows.use("attention.projection_gradients", 2 * (query + key_value), s.dtype,
           Step::kBackwardLayout, Step::kBackwardQkv, "2*(a+2k)*d*T");
  add_weight_gradient(b, "attention.output_weight_gradient", s.hidden * s.query_width,
                      Step::kBackwardProjection);
  add_weight_gradient(b, "attention.query_gradient", s.hidden * s.query_width, Step::kBackwardQkv);
  add_weight_gradient(b, "attention.key_value_gradients", 2 * s.hidden * s.key_value_width,
                      Step::kBackwardQkvWeight);
}

void add_ffn(EagerBlock& b) {
  const BlockShape& s = b.s;
  const std::int64_t activations = b.job.model.ffn * s.tokens;
  b.rows.keep("ffn.gate_and_up", 2 * activations, s.dtype,
              {.born = Step::kForwardFc1,
               .last_forward_use = Step::kForwardActivation,
               .dies = Step::kBackwardActivation},
              "2f*T: saved by silu and by the product");
  b.rows.keep("ffn.gate_activation", activations, s.dtype,
              {.born = Step::kForwardActivation,
               .last_forward_use = Step::kForwardActivation,
               .dies = Step::kBackwardActivation},
              "f*T: silu(gate)");
  b.rows.keep("ffn.activation_output", activations, s.dtype,
              {.born = Step::kForwardActivation,
               .last_forward_use = Step::kForwardFc2,
               .dies = Step::kBackwardFc2},
              "f*T: input of the down projection");
  const std::int64_t weight = s.hidden * b.job.model.ffn;
  add_weight_gradient(b, "ffn.down_gradient", weight, Step::kBackwardFc2);
  add_weight_gradient(b, "ffn.gate_gradient", weight, Step::kBackwardFc1);
  add_weight_gradient(b, "ffn.up_gradient", weight, Step::kBackwardFc1Weight);
  b.rows.use("ffn.output", b.sequence(), s.dtype, Step::kForwardFc2, Step::kForwardOutput, "h*T");
  b.rows.use("ffn.activation_gradient", activations, s.dtype, Step::kBackwardFc2,
             Step::kBackwardActivation, "f*T");
  b.rows.use("ffn.gate_and_up_gradients", 3 * activations, s.dtype, Step::kBackwardActivation,
             Step::kBackwardFc1, "3f*T: of silu, gate and up");
}

void add_layer(EagerBlock& b) {
  RowList& rows = b.rows;
  rows.keep("input", b.sequence(), b.s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kForwardProjection},
            "h*T: residual stream; no operation saves it");
  add_norm(b, "attention.norm_fp32", "attention.normed", "attention.norm_output",
           "attention.norm_gradients", Step::kForwardNorm, Step::kForwardQkv, Step::kBackwardNorm);
  add_attention(b);
  rows.use("ffn.input", b.sequence(), b.s.dtype, Step::kForwardProjection, Step::kForwardOutput,
           "h*T: residual stream");
  add_norm(b, "ffn.norm_fp32", "ffn.normed", "ffn.norm_output", "ffn.norm_gradients",
           Step::kForwardFfnNorm, Step::kForwardFc1, Step::kBackwardFfnNorm);
  add_ffn(b);
  add_bucket(b, kFirstBackward, b.buckets.fills, b.buckets.flat_in_layers,
             {Step::kBackwardFc2Weight, Step::kBackwardFc1Weight, Step::kBackwardQkvWeight});
  rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*T");
  rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput,
           Step::kBackwardFfnNorm, "h*T");
  rows.use("input_gradient", b.sequence(), b.s.dtype, Step::kBackwardFfnNorm, Step::kBackwardInput,
           "h*T");
}

void add_embedding(EagerBlock& b) {
  b.rows.keep("token_ids", b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardInput},
              "T");
  b.rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*T");
  const std::int64_t table = b.s.local_vocab * b.s.hidden;
  // The last reduction finds it in the bucket, unless it is larger, or added to that of the head.
  const bool waits = table > b.job.profile.reduce_bucket_elements && !b.job.model.tied_embeddings;
  const Step made = waits ? Step::kBackwardInput : Step::kBackwardNorm;
  b.rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput, made, "h*T");
  add_weight_gradient(b, "weight_gradient", table, made);
  add_bucket(b, kFirstBackward, true, b.buckets.flat_at_end, {Step::kBackwardInput});
  const bool gathers = b.plan.zero == 3 && dense_shard_size(b.job, b.plan) > 1;
  b.rows
      .use_as(Component::kCommunication, "prefetch.table", gathers ? table : 0, b.s.dtype,
              kFirstBackward, kFirstBackward,
              "h*V: flat output of the all-gather that takes the table along with a bucket")
      .stream = b.stream(AllocationStream::kGather);
}

// What the first hook of a step makes and what the first microbatch leaves to the others.
void add_step_gradients(EagerBlock& b, Step born) {
  const DeepspeedBuckets& buckets = b.buckets;
  const bool accumulates = num_microbatches(b.job, b.plan) > 1;
  keep_for_the_step(b, Component::kCommunication, "reduce_bucket",
                    b.plan.zero == 1 ? buckets.elements : 0, born,
                    "R: contiguous ipg buffer, from the first backward pass to the reduction");
  keep_for_the_step(b, Component::kGradients, "gradients.accumulated",
                    b.plan.zero == 2 && accumulates ? buckets.partition : 0, born,
                    "whole tensors that this rank's N/S reaches into, of the microbatches before");
}

// logits.float(), then cross_entropy over labels shifted by padding: the log-softmax is saved. Its
// backward has a gradient of the log-softmax and one of the logits, both in fp32.
void add_head(EagerBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_norm(b, "final_norm.fp32", "final_norm.normed", "final_norm.output", "final_norm.gradients",
           Step::kForwardInput, Step::kForwardLogits, Step::kBackwardInput);
  b.rows.use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardLoss,
             "V*T: part of the model's output until the loss has returned");
  b.rows.use("logits_fp32", logits, DType::kFp32, Step::kForwardLoss, Step::kForwardLoss, "V*T");
  b.rows.keep("loss.log_softmax", logits, DType::kFp32,
              {.born = Step::kForwardLoss,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "V*T: saved by cross_entropy");
  b.rows.keep("labels", b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "T");
  b.rows.use("loss.gradients_fp32", 2 * logits, DType::kFp32, Step::kBackwardLoss,
             Step::kBackwardLoss, "2*V*T: of the log-softmax, and of the logits in fp32");
  b.rows.split_last({logits, logits});
  b.rows.use("loss.logits_gradient", logits, b.s.dtype, Step::kBackwardLogits,
             Step::kBackwardLogits, "V*T: cast back");
  const std::int64_t table = b.s.local_vocab * b.s.hidden;
  if (b.job.model.tied_embeddings) {
    b.rows.use("weight_gradient", table, b.s.dtype, Step::kBackwardLogits, Step::kWeight,
               "of the head, until the embedding's is added");
  } else {
    add_weight_gradient(b, "weight_gradient", table, Step::kBackwardLogits);
  }
  add_step_gradients(b, Step::kBackwardInput);
  add_bucket(b, Step::kBackwardInput, b.buckets.flat_in_head > 0, b.buckets.flat_in_head,
             {Step::kBackwardInput});
  b.rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardLogits,
             Step::kBackwardInput, "h*T");
}

}  // namespace

std::vector<BlockRow> deepspeed_rows(const Job& job, const Plan& plan, BlockKind kind) {
  return eager_rows(job, plan, kind, add_embedding, add_layer, add_head);
}

}  // namespace shardplan
