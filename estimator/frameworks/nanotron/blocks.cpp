// Row tables of nanotron. Sources, read in huggingface/nanotron at 2411b022 and v0.5:
//   models/llama.py (LlamaDecoderLayer, CausalSelfAttention, MLP, Loss), parallel/tensor_parallel/
//   functional.py (_ShardedCrossEntropy, column_linear, row_linear), nn/layer_norm.py; flash-attn
//   2.x layers/rotary.py and flash_attn_interface.py.
// Letters in block_rows.h. Weight gradients stay until loss.backward() returns: the fp32
// accumulator reads them then (optim/gradient_accumulator.py, FP32GradientAccumulator.backward).
// Order of tensors: traces of PyTorch's allocator (tools/measure_frameworks.py, "trace"); products
// make the gradient of their weight first. Where a kind of row needs more steps than there are
// names, the next free one stands for it: silu's backward at kBackwardFc2Weight, putting gate and
// up together at kBackwardFc1Gather, q, k and v at kBackwardQkvGather.
#include "estimator/frameworks/nanotron/blocks.h"

#include <stdexcept>
#include <string_view>

#include "estimator/plan/layer_partition.h"

namespace shardplan {
namespace {

// A weight gradient in the weight's dtype: made by its product, alive until the backward of the
// microbatch has ended.
BlockRow& keep_gradient(RowList& rows, std::string_view name, std::int64_t elements, DType dtype,
                        Step born) {
  return rows.use_as(Component::kGradients, name, elements, dtype, born, Step::kWeight,
                     "of the weight, in its dtype; until the microbatch's backward ends");
}

struct NanotronBlock {
  const Job& job;
  const Plan& plan;
  BlockShape s;
  RowList& rows;

  std::int64_t sequence() const { return s.hidden * s.sharded_tokens; }
  std::int64_t full_sequence() const { return s.hidden * s.tokens; }
  std::int64_t query() const { return s.query_width * s.tokens; }
  std::int64_t key_value() const { return 2 * s.key_value_width * s.tokens; }
  bool is_mha() const { return job.model.num_heads == job.model.num_kv_heads; }
  // The input of a column-parallel linear layer as it is saved: gathered, unless the gather runs
  // again in backward.
  bool saves_gathered() const { return s.gathers_sequence && !job.profile.recompute_allgather; }
};

// A norm and the linear layer that takes its output: names of the rows, and steps.
struct NormRows {
  std::string_view statistics;
  std::string_view output;
  std::string_view local_output;
  Step norm;
  Step product;
  Step last_local;  // that holds the output before it is gathered
  Step backward;
};

void add_norm(NanotronBlock& b, const NormRows& rows) {
  b.rows.keep(rows.statistics, b.s.sharded_tokens, DType::kFp32,
              {.born = rows.norm, .last_forward_use = rows.norm, .dies = rows.backward},
              "u: reciprocal root mean square of the Triton kernel, fp32");
  if (b.saves_gathered()) {
    b.rows.use(rows.local_output, b.sequence(), b.s.dtype, rows.norm, rows.last_local,
               "h*u: held by the layer's forward");
    b.rows.keep(rows.output, b.full_sequence(), b.s.dtype,
                {.born = rows.product, .last_forward_use = rows.product, .dies = rows.backward},
                "h*T: gathered, saved by the linear layer (tp_recompute_allgather off)");
  } else {
    b.rows.keep(rows.output, b.sequence(), b.s.dtype,
                {.born = rows.norm, .last_forward_use = rows.last_local, .dies = rows.backward},
                "h*u: input of the linear layer");
  }
}

// Around a pair of linear layers: names of the rows, and steps.
struct ExchangeRows {
  std::string_view partial;
  std::string_view gathered;
  std::string_view full_gradient;
  Step forward;
  Step backward;
  Step input_backward;
};

void add_sequence_exchange(NanotronBlock& b, const ExchangeRows& rows) {
  if (!b.s.gathers_sequence) {
    return;
  }
  b.rows.use(rows.partial, b.full_sequence(), b.s.dtype, rows.forward, rows.forward,
             "h*T: partial sums before the reduce-scatter");
  b.rows.use(rows.gathered, b.job.profile.keeps_gather_buffers ? 0 : b.full_sequence(), b.s.dtype,
             rows.backward, rows.backward, "h*T: output gradient, gathered");
  b.rows.use(rows.full_gradient, b.full_sequence(), b.s.dtype, rows.input_backward,
             rows.input_backward, "h*T: input gradient before its reduce-scatter");
}

// More than one sequence makes the transposed view non-contiguous. F.linear saves the copy; the
// product that scatters its sums by itself (_RowLinearAsyncCommunication; after v0.4, with the
// buffers that stay) the view.
void add_projection_input(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t copied = b.plan.micro_batch > 1 ? b.query() : 0;
  const bool saves_view = s.gathers_sequence && b.job.profile.keeps_gather_buffers;
  rows.keep("attention.projection_input", saves_view ? 0 : copied, s.dtype,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardProjection},
            "a*d*T/t: a contiguous copy of the view");
  rows.use("attention.projection_input_copy", saves_view ? copied : 0, s.dtype,
           Step::kForwardProjection, Step::kForwardProjection, "a*d*T/t: for the product");
  rows.use("attention.projection_input_again", saves_view ? copied : 0, s.dtype,
           Step::kBackwardProjection, Step::kBackwardProjection,
           "a*d*T/t: for the product of the weight's gradient");
}

// Queries are rotated in place, in the storage that q, k and v were made contiguous in; keys and
// values are stacked into a second one. With fewer kv heads q has a storage of its own.
void add_attention_forward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = b.query();
  const std::int64_t key_value = b.key_value();
  const bool is_mha = b.is_mha();
  const Life saved{.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardAttention};
  rows.use("attention.packed_qkv", query + key_value, s.dtype, Step::kForwardQkv,
           Step::kForwardProjection, "(a+2k)*d*T/t: held by the forward's local variable")
      .is_first_product = true;
  rows.keep("attention.query_storage", is_mha ? query + key_value : query, s.dtype, saved,
            "3*a*d*T/t (a*d*T/t with fewer kv heads): q rotated in place inside it");
  rows.use("attention.separate_keys_values", is_mha ? 0 : key_value, s.dtype, Step::kForwardLayout,
           Step::kForwardProjection, "2*k*d*T/t: contiguous k and v, held by local variables");
  rows.use("attention.concatenated_keys_values", key_value, s.dtype, Step::kForwardLayout,
           Step::kForwardLayout, "2*k*d*T/t: torch.cat before the permute copies");
  rows.keep("attention.keys_values", key_value, s.dtype, saved,
            "2*k*d*T/t: saved by flash attention");
  rows.keep("attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = Step::kBackwardAttention},
            "a*T/t: fp32");
  rows.keep("attention.output", query, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "a*d*T/t: saved by flash attention");
  add_projection_input(b);
  rows.use("attention.projection_output", b.sequence(), s.dtype, Step::kForwardProjection,
           Step::kForwardOutput, "h*u: the layer's local variable holds attention's answer");
}

void add_attention_backward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = b.query();
  const std::int64_t key_value = b.key_value();
  const bool is_mha = b.is_mha();
  keep_gradient(rows, "attention.projection_weight_gradient", s.hidden * s.query_width, s.dtype,
                Step::kBackwardProjection);
  rows.use("attention.output_gradient", query, s.dtype, Step::kBackwardProjection,
           Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.query_gradient", query, s.dtype, Step::kBackwardAttention,
           Step::kBackwardLayout, "a*d*T/t");
  rows.use("attention.key_value_gradients", key_value, s.dtype, Step::kBackwardAttention,
           Step::kBackwardKeyValueReduce, "2*k*d*T/t: of k and of v");
  rows.split_last({key_value / 2, key_value - key_value / 2});
  rows.use("attention.query_accumulator", query, DType::kFp32, Step::kBackwardAttention,
           Step::kBackwardAttention, "a*d*T/t: flash attention's dQ in fp32");
  rows.use("attention.stacked_key_value_gradient", key_value, s.dtype,
           Step::kBackwardKeyValueReduce, Step::kBackwardLayout, "2*k*d*T/t");
  rows.use("attention.stacked_gradient", is_mha ? query + key_value : 0, s.dtype,
           Step::kBackwardLayout, Step::kBackwardQkvGather,
           "3*a*d*T/t: q, k and v in the order of the packed storage");
  rows.use("attention.packed_gradient", query + key_value, s.dtype,
           is_mha ? Step::kBackwardQkvGather : Step::kBackwardLayout, Step::kBackwardQkv,
           "(a+2k)*d*T/t");
  keep_gradient(rows, "attention.qkv_weight_gradient",
                s.hidden * (s.query_width + 2 * s.key_value_width), s.dtype, Step::kBackwardQkv);
  add_sequence_exchange(b, {.partial = "attention.partial_output",
                            .gathered = "attention.gathered_output_gradient",
                            .full_gradient = "attention.full_input_gradient",
                            .forward = Step::kForwardProjection,
                            .backward = Step::kBackwardProjection,
                            .input_backward = Step::kBackwardQkv});
}

void add_ffn(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t width = div_ceil(b.job.model.ffn, b.plan.tp);
  const std::int64_t activations = width * s.tokens;
  rows.keep("ffn.gate_up", 2 * activations, s.dtype,
            {.born = Step::kForwardFc1,
             .last_forward_use = Step::kForwardFc2,
             .dies = Step::kBackwardFc2Weight},
            "2f*T/t: gate and up, saved by silu and by the product");
  rows.keep("ffn.gate_activation", activations, s.dtype,
            {.born = Step::kForwardActivation,
             .last_forward_use = Step::kForwardActivation,
             .dies = Step::kBackwardActivation},
            "f*T/t: silu(gate), saved by the product");
  rows.keep("ffn.activation_output", activations, s.dtype,
            {.born = Step::kForwardActivation,
             .last_forward_use = Step::kForwardFc2,
             .dies = Step::kBackwardFc2},
            "f*T/t: input of the second linear layer");
  rows.use("ffn.output", b.sequence(), s.dtype, Step::kForwardFc2, Step::kForwardOutput, "h*u");
  keep_gradient(rows, "ffn.down_weight_gradient", s.hidden * width, s.dtype, Step::kBackwardFc2)
      .is_first_product = true;
  rows.use("ffn.activation_gradient", activations, s.dtype, Step::kBackwardFc2,
           Step::kBackwardActivation, "f*T/t");
  rows.use("ffn.gate_activation_gradient", activations, s.dtype, Step::kBackwardActivation,
           Step::kBackwardFc2Weight, "f*T/t: of silu(gate)");
  rows.use("ffn.up_gradient", activations, s.dtype, Step::kBackwardActivation,
           Step::kBackwardFc1Gather, "f*T/t");
  rows.use("ffn.gate_gradient", activations, s.dtype, Step::kBackwardFc2Weight,
           Step::kBackwardFc1Gather, "f*T/t");
  rows.use("ffn.gate_up_gradient", 2 * activations, s.dtype, Step::kBackwardFc1Gather,
           Step::kBackwardFc1, "2f*T/t: put together");
  keep_gradient(rows, "ffn.gate_up_weight_gradient", 2 * s.hidden * width, s.dtype,
                Step::kBackwardFc1);
  add_sequence_exchange(b, {.partial = "ffn.partial_output",
                            .gathered = "ffn.gathered_output_gradient",
                            .full_gradient = "ffn.full_input_gradient",
                            .forward = Step::kForwardFc2,
                            .backward = Step::kBackwardFc2,
                            .input_backward = Step::kBackwardFc1});
}

void add_layer(NanotronBlock& b) {
  RowList& rows = b.rows;
  const DType dtype = b.s.dtype;
  rows.keep("input", b.sequence(), dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardNorm},
            "h*u: residual stream, saved by the norm");
  add_norm(b, {.statistics = "attention.norm_statistics",
               .output = "attention.norm_output",
               .local_output = "attention.local_norm_output",
               .norm = Step::kForwardNorm,
               .product = Step::kForwardQkv,
               .last_local = Step::kForwardProjection,
               .backward = Step::kBackwardQkv});
  add_attention_forward(b);
  add_attention_backward(b);
  rows.keep("ffn.input", b.sequence(), dtype,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardFfnNorm},
            "h*u: residual stream, saved by the norm");
  add_norm(b, {.statistics = "ffn.norm_statistics",
               .output = "ffn.norm_output",
               .local_output = "ffn.local_norm_output",
               .norm = Step::kForwardFfnNorm,
               .product = Step::kForwardFc1,
               .last_local = Step::kForwardFc2,
               .backward = Step::kBackwardFc1});
  add_ffn(b);
  rows.use("output_gradient", b.sequence(), dtype, Step::kBackwardOutput, Step::kBackwardFfnNorm,
           "h*u: kept for the residual path");
  rows.use("ffn.norm_gradient", b.sequence(), dtype, Step::kBackwardFc1, Step::kBackwardFfnNorm,
           "h*u");
  rows.use("ffn.input_gradient", b.sequence(), dtype, Step::kBackwardFfnNorm, Step::kBackwardNorm,
           "h*u");
  rows.use("attention.norm_gradient", b.sequence(), dtype, Step::kBackwardQkv, Step::kBackwardNorm,
           "h*u");
  rows.use("input_gradient", b.sequence(), dtype, Step::kBackwardNorm, Step::kBackwardInput, "h*u");
  rows.use("output", b.sequence(), dtype, Step::kForwardOutput, Step::kForwardOutput, "h*u");
  keep_gradient(rows, "norm_weight_gradients", 2 * b.s.hidden, dtype, Step::kBackwardFfnNorm);
}

void add_embedding(NanotronBlock& b) {
  RowList& rows = b.rows;
  const bool is_summed = b.job.model.tied_embeddings && head_stage(b.job, b.plan) == 0;
  rows.keep("token_ids", b.s.tokens, DType::kInt64,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardInput},
            "T");
  rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*u");
  rows.use("full_output", b.s.gathers_sequence ? b.full_sequence() : 0, b.s.dtype,
           Step::kForwardOutput, Step::kForwardOutput, "h*T: before the reduce-scatter");
  rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput, Step::kBackwardInput,
           "h*u");
  rows.use("full_gradient", b.s.gathers_sequence ? b.full_sequence() : 0, b.s.dtype,
           Step::kBackwardInput, Step::kBackwardInput, "h*T: gathered");
  keep_gradient(rows, "weight_gradient", b.s.local_vocab * b.s.hidden, b.s.dtype,
                Step::kBackwardInput);
  rows.use("summed_weight_gradient", is_summed ? b.s.local_vocab * b.s.hidden : 0, b.s.dtype,
           Step::kBackwardInput, Step::kBackwardInput,
           "V*h/t: with the head's, before either is freed");
}

void add_final_norm(NanotronBlock& b) {
  b.rows.keep("final_norm.input", b.sequence(), b.s.dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLogits,
               .dies = Step::kBackwardInput},
              "h*u: saved by the norm");
  add_norm(b, {.statistics = "final_norm.statistics",
               .output = "final_norm.output",
               .local_output = "final_norm.local_output",
               .norm = Step::kForwardInput,
               .product = Step::kForwardLogits,
               .last_local = Step::kForwardLogits,
               .backward = Step::kBackwardLogits});
}

void add_logits_backward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  keep_gradient(b.rows, "weight_gradient", s.local_vocab * s.hidden, s.dtype, Step::kBackwardLogits)
      .is_first_product = true;
  b.rows.use("full_input_gradient", s.gathers_sequence ? b.full_sequence() : 0, s.dtype,
             Step::kBackwardLogits, Step::kBackwardLogits, "h*T: before its reduce-scatter");
  b.rows.use("final_norm.output_gradient", b.sequence(), s.dtype, Step::kBackwardLogits,
             Step::kBackwardInput, "h*u");
  b.rows.use("final_norm.input_gradient", b.sequence(), s.dtype, Step::kBackwardInput,
             Step::kBackwardInput, "h*u");
}

// The loss subtracts the maximum from the fp32 logits into a second fp32 tensor, turns it into the
// softmax in place and saves it; backward turns it into the gradient in place.
void add_softmax(NanotronBlock& b, Step gradient_dies) {
  b.rows.keep(
      "loss.softmax", b.s.local_vocab * b.s.tokens, DType::kFp32,
      {.born = Step::kForwardLoss, .last_forward_use = Step::kForwardLoss, .dies = gradient_dies},
      "V*T/t: logits less their maximum, becomes the softmax and then the gradient");
}

// There since `cast`.
void add_cast_logits(NanotronBlock& b, Step cast) {
  b.rows.use("logits_fp32", b.s.local_vocab * b.s.tokens, DType::kFp32, cast, Step::kForwardLoss,
             "V*T/t: held by the model's forward until the loss is there");
}

void add_labels(NanotronBlock& b) {
  b.rows.keep("labels", 2 * b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "2*T: labels and their mask");
}

// Logits in the activation's type, their cast and the loss.
void add_head(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_final_norm(b);
  b.rows
      .use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardLogits,
           "V*T/t: freed when the cast has returned")
      .is_first_product = true;
  add_cast_logits(b, Step::kForwardLogits);
  add_softmax(b, Step::kBackwardLoss);
  b.rows.use("loss.logits_gradient", logits, b.s.dtype, Step::kBackwardLoss, Step::kBackwardLogits,
             "V*T/t: cast back");
  add_labels(b);
  add_logits_backward(b);
}

// The same on several ranks (models/base.py, build_model): logits are sent from one to the next,
// their gradients back. What a rank has received lives until its backward pass (seen in traces).
// What it sends waits, under 1F1B, for the next backward pass, which sends before it asks for the
// gradient (parallel/pipeline_parallel/state.py, run_communication).
void add_received(NanotronBlock& b, DType dtype) {
  b.rows.keep("received_logits", b.s.local_vocab * b.s.tokens, dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardInput},
              "V*T/t");
}

void add_unsent(NanotronBlock& b, DType dtype) {
  const bool waits = b.plan.schedule == Schedule::k1F1B;
  b.rows.use("unsent_logits", waits ? b.s.local_vocab * b.s.tokens : 0, dtype,
             Step::kBackwardOutput, Step::kBackwardOutput, "V*T/t: of the last forward pass");
}

void add_logits(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_final_norm(b);
  b.rows.use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardOutput, "V*T/t: sent")
      .is_first_product = true;
  add_unsent(b, b.s.dtype);
  b.rows.use("logits_gradient", logits, b.s.dtype, Step::kBackwardOutput, Step::kBackwardLogits,
             "V*T/t: received");
  add_logits_backward(b);
}

// The loss is on the same stage where that is the last one.
bool casts_on_last_stage(const NanotronBlock& b) {
  return head_stage(b.job, b.plan) + 2 == b.plan.pp;
}

void add_cast(NanotronBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_received(b, b.s.dtype);
  b.rows.use("logits_fp32", logits, DType::kFp32, Step::kForwardOutput, Step::kForwardOutput,
             "V*T/t");
  if (!casts_on_last_stage(b)) {
    add_unsent(b, DType::kFp32);
  }
  b.rows.use("logits_fp32_gradient", logits, DType::kFp32, Step::kBackwardOutput,
             Step::kBackwardInput, "V*T/t");
  b.rows
      .use("logits_gradient", logits, b.s.dtype, Step::kBackwardInput, Step::kBackwardInput,
           "V*T/t: cast back, sent")
      .is_freed_in_use = true;
}

void add_loss(NanotronBlock& b) {
  if (casts_on_last_stage(b)) {
    add_cast_logits(b, Step::kForwardInput);
  } else {
    add_received(b, DType::kFp32);
  }
  add_softmax(b, Step::kBackwardInput);
  add_labels(b);
}

void add_block(NanotronBlock& b, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding: return add_embedding(b);
    case BlockKind::kDenseLayer: return add_layer(b);
    case BlockKind::kHead: return add_head(b);
    case BlockKind::kLogits: return add_logits(b);
    case BlockKind::kCast: return add_cast(b);
    case BlockKind::kLoss: return add_loss(b);
    case BlockKind::kSentOutput: return;
    case BlockKind::kMoeLayer:
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kMtp: break;
  }
  throw std::logic_error("nanotron_rows: a layer that has no rows");
}

}  // namespace

std::vector<BlockRow> nanotron_rows(const Job& job, const Plan& plan, BlockKind kind) {
  RowList rows(1);
  NanotronBlock block{.job = job, .plan = plan, .s = block_shape(job, plan), .rows = rows};
  add_block(block, kind);
  return rows.rows;
}

bool has_nanotron_block(const Job& /*job*/, BlockKind kind) {
  return kind == BlockKind::kLogits || kind == BlockKind::kCast || kind == BlockKind::kLoss;
}

}  // namespace shardplan
