// Read in Megatron-LM core_v0.16.1 core/transformer/experimental_attention_variant/dsa.py
// (DSAIndexer, unfused_dsa_fn, compute_dsa_indexer_loss, DSAttention), whose functions keep these
// tensors under torch's saved_tensors_hooks. Letters: T tokens, s their sequence, P = a*s*T/t pairs
// of the attention's heads, I = i*s*T of the indexer's i heads, which every tensor-parallel rank
// has; n and m widths of a head of either; h hidden, ql compressed queries, dr rotary width.
#include "estimator/frameworks/megatron/mixers/sparse_attention.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/core_attention.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_work.h"

namespace shardplan::megatron {
namespace {

constexpr Step kForward = Step::kForwardAttention;
constexpr Step kBackward = Step::kBackwardAttention;
constexpr Life kInAttention = {.born = kForward, .last_forward_use = kForward, .dies = kBackward};
constexpr Life kInIndexer = {
    .born = kForward, .last_forward_use = kForward, .dies = Step::kBackwardLayout};

std::int64_t pairs(const MegatronBlock& block) {
  return block.shape.query_heads * block.shape.tokens * block.job.sequence_length;
}
std::int64_t index_pairs(const MegatronBlock& block) {
  return block.job.model.indexer.num_heads * block.shape.tokens * block.job.sequence_length;
}

// Queries and keys are cast to fp32, and held by attention's forward until it returns.
void add_inputs(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const AttentionWidths widths = attention_widths(block);
  RowList& rows = block.rows;
  rows.use("attention.query_key", s.tokens * (widths.query + widths.key), s.dtype,
           Step::kForwardLayout, Step::kForwardProjection,
           "2*a*n*T/t: behind the rotary embedding");
  rows.keep("attention.fp32_query_key", s.tokens * (widths.query + widths.key), DType::kFp32,
            kInAttention, "2*a*n*T/t: cast, saved by the product of scores");
  rows.keep("attention.value", s.tokens * widths.value, s.dtype,
            {.born = Step::kForwardLayout, .last_forward_use = kForward, .dies = kBackward},
            "a*dv*T/t: saved by the product of values");
}

// The indexer's products take detached inputs, gathered along the sequence. ReLU saves its output,
// which is multiplied with weights and summed over heads.
void add_indexer(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const IndexerSpec& indexer = block.job.model.indexer;
  const MlaSpec& mla = block.job.model.mla;
  RowList& rows = block.rows;
  const std::int64_t gathered = s.gathers_sequence ? s.tokens : 0;
  rows.keep("indexer.gathered_input", gathered * (s.hidden + mla.q_lora_rank), s.dtype, kInIndexer,
            "(h+ql)*T: gathered for the indexer's products");
  rows.keep("indexer.key_norm_input", s.tokens * indexer.head_dim, s.dtype, kInIndexer, "m*T");
  rows.keep("indexer.key_norm_statistics", 2 * s.tokens, DType::kFp32, kInIndexer,
            "2*T: of a LayerNorm");
  rows.keep("indexer.rotary_tables", 4 * block.job.sequence_length * mla.qk_rope_head_dim, s.dtype,
            kInIndexer, "4*s*dr: cosines and sines of queries and of keys");
  rows.keep("indexer.fp32_query_key", s.tokens * (indexer.num_heads + 1) * indexer.head_dim,
            DType::kFp32, kInIndexer, "(i+1)*m*T: saved by the product of scores");
  rows.keep("indexer.weights", s.tokens * indexer.num_heads, s.dtype, kInIndexer, "i*T");
  rows.keep("indexer.scores", index_pairs(block), DType::kFp32, kInIndexer, "I: saved by ReLU");
  rows.use("indexer.score_gradients", 2 * index_pairs(block), DType::kFp32, Step::kBackwardLayout,
           Step::kBackwardLayout, "2*I: of the weighted scores, and before ReLU");
  add_linear_gradient(block, "indexer.query_weight_gradient",
                      mla.q_lora_rank * indexer.num_heads * indexer.head_dim,
                      block.weight_step(Step::kBackwardQkv));
  add_linear_gradient(block, "indexer.key_weight_gradient", s.hidden * indexer.head_dim,
                      block.weight_step(Step::kBackwardQkv));
  add_linear_gradient(block, "indexer.weights_weight_gradient", s.hidden * indexer.num_heads,
                      block.weight_step(Step::kBackwardQkv));
}

// Scores of all pairs in fp32; those not chosen are masked. The loss makes them once more, beside
// what attention keeps, and keeps three numbers a pair of positions.
void add_attention(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const AttentionWidths widths = attention_widths(block);
  RowList& rows = block.rows;
  const std::int64_t positions = s.tokens * block.job.sequence_length;
  rows.keep("attention.probabilities", pairs(block), DType::kFp32, kInAttention,
            "P: saved by softmax, fp32");
  rows.keep("attention.cast_probabilities", pairs(block), s.dtype, kInAttention,
            "P: saved by the product of values");
  rows.use("indexer.target_scores", 2 * pairs(block), DType::kFp32, kForward, kForward,
           "2*P: of the loss, scaled, then behind softmax");
  rows.keep("indexer.loss", 3 * positions, DType::kFp32, kInAttention,
            "3*s*T: softmax of the indexer's scores, its logarithm's input, and the target");
  for (const std::string_view name : {"attention.probability_gradients",
                                      "attention.softmax_products", "attention.score_gradients"}) {
    rows.use(name, pairs(block), DType::kFp32, kBackward, kBackward,
             "P: while PyTorch's softmax is differentiated");
  }
  const std::int64_t output = s.tokens * widths.output;
  rows.keep("attention.output", output, s.dtype,
            {.born = kForward,
             .last_forward_use = Step::kForwardProjection,
             .dies = block.weight_step(Step::kBackwardProjection)},
            "a*dv*T/t: saved by the projection");
  rows.use("attention.output_gradient", output, s.dtype, Step::kBackwardProjection, kBackward,
           "a*dv*T/t");
  rows.use("attention.fp32_query_key_gradient", s.tokens * (widths.query + widths.key),
           DType::kFp32, kBackward, kBackward, "2*a*n*T/t");
  rows.use("attention.qkv_gradient", s.tokens * widths.qkv(), s.dtype, kBackward,
           Step::kBackwardLayout, "(2*a*n+a*dv)*T/t");
}

// Bytes of a pair: forward the product's 4, scaled 8, masked 8, softmax 8 and cast 6, the loss's
// the same but for the cast and a sum 4, less what unfused attention has, 4; backward cast 6,
// softmax 24, scaled 8 and read by two products 8, less 6.
constexpr Passes kPairs = {.forward = {.streamed = 62}, .backward = {.streamed = 40}};
// Of a pair of the indexer: the product's 4, ReLU 8, weighted 8, summed 4; backward both gradients
// of the weighted 20, ReLU 12 and read by two products 8.
constexpr Passes kIndexPairs = {.forward = {.streamed = 24}, .backward = {.streamed = 40}};

}  // namespace

void add_sparse_attention(MegatronBlock& block) {
  add_inputs(block);
  add_indexer(block);
  add_attention(block);
}

// Products of scores run in fp32 outside the tensor cores: attention's and the loss's forward,
// attention's two backward, and the indexer's three.
void add_sparse_kernels(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  if (!layer.has_indexer) {
    return;
  }
  const ModelSpec& model = context.model();
  const double positions = number(context.tokens) * number(context.job.sequence_length);
  const double of_heads = positions * number(div_ceil(model.num_heads, context.plan.tp));
  const double of_indexer = positions * number(model.indexer.num_heads);
  const double scores = 2 * of_heads * number(model.qk_head_dim());
  const double index_scores = 2 * of_indexer * number(model.indexer.head_dim);
  const GpuSpec& gpu = context.gpu();
  const double rate = gpu.fp32_flops_per_s * gpu.constants->gemm_share;
  BlockTime products;
  products.forward_flops = 2 * scores + index_scores;
  products.forward_s = products.forward_flops / rate;
  products.backward_input_s = 2 * (scores + index_scores) / rate;
  begin_part(context, "attention");
  note(context, PieceKind::kProduct, products);
  add(parts.attention, products);
  add(parts.attention, memory_bound(context, of_heads, kPairs));
  add(parts.attention, memory_bound(context, of_indexer, kIndexPairs));
}

}  // namespace shardplan::megatron
