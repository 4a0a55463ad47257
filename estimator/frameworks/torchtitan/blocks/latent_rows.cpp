// Multi-head latent attention of a torchtitan layer (models/deepseek_v3/model/model.py), with what
// autograd keeps of it (latent_layer.cpp plays it). Letters beside those of
// block_rows.h: n, r, v widths of a head without rotation, with it, and of its value; lq, lk ranks
// of the latent queries and keys.
#include "estimator/frameworks/torchtitan/blocks/latent_rows.h"

#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {
namespace {

constexpr Step kReplayed = Step::kBackwardOutput;
constexpr Step kKeys = Step::kBackwardKeyNorm;
constexpr Step kQueries = Step::kBackwardQueryNorm;

struct LatentRows {
  TitanBlock& block;
  TitanSizes sizes;

  std::int64_t of(std::int64_t bytes) const { return bytes / bytes_of(block.shape.dtype); }
  void keep(std::string_view name, std::int64_t bytes, Life life, std::string_view formula) {
    block.keep_or_write_again(name, of(bytes), block.shape.dtype, life, formula);
  }
  // The output of a product, or what a compiled flex_attention returns for backward.
  void keep_if(bool saved, std::string_view name, std::int64_t bytes, Life life,
               std::string_view formula) {
    if (saved) {
      block.rows.keep(name, of(bytes), block.shape.dtype, life, formula);
    } else {
      keep(name, bytes, life, formula);
    }
  }
  // Saved though backward does not use it.
  void keep_for_replay(Weight weight, std::string_view name, std::int64_t bytes, Step born,
                       std::string_view formula) {
    if (block.recomputes_ops() && sizes.saves_product(weight)) {
      block.rows.keep(name, of(bytes), block.shape.dtype,
                      {.born = born, .last_forward_use = born, .dies = kReplayed}, formula);
    }
  }
  void use(std::string_view name, std::int64_t bytes, Step born, Step dies,
           std::string_view formula) {
    block.rows.use(name, of(bytes), block.shape.dtype, born, dies, formula);
  }
  void weight_gradient(std::string_view name, Weight weight, Step born, std::string_view formula) {
    use(name, sizes.weight(weight), born, Step::kBackwardInput, formula);
  }
};

void add_inputs(LatentRows& rows) {
  TitanBlock& block = rows.block;
  block.rows.keep("input", block.sequence(), block.residual(),
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardNorm},
                  "h*T: residual stream");
  block.keep_or_write_again("attention.norm_statistics", block.shape.tokens, DType::kFp32,
                            {.born = Step::kForwardNorm,
                             .last_forward_use = Step::kForwardNorm,
                             .dies = Step::kBackwardNorm},
                            "T: reciprocal root mean square");
  rows.keep("attention.norm_output", rows.sizes.sequence,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardQkv},
            "h*T: input of wq_a (or wq) and wkv_a");
}

void add_queries(LatentRows& rows) {
  const TitanMla& s = rows.sizes.mla;
  if (s.query_down > 0) {
    rows.keep_if(
        rows.sizes.saves_product(Weight::kQueryDown), "attention.query_down", s.query_down,
        {.born = Step::kForwardQkv, .last_forward_use = Step::kForwardQueryNorm, .dies = kQueries},
        "lq*T: output of wq_a");
    rows.keep("attention.query_norm", s.query_down,
              {.born = Step::kForwardQueryNorm,
               .last_forward_use = Step::kForwardQueryNorm,
               .dies = kQueries},
              "lq*T: input of wq_b");
    rows.block.keep_or_write_again("attention.query_norm_statistics", rows.block.shape.tokens,
                                   DType::kFp32,
                                   {.born = Step::kForwardQueryNorm,
                                    .last_forward_use = Step::kForwardQueryNorm,
                                    .dies = kQueries},
                                   "T: reciprocal root mean square");
  }
  rows.use("attention.query_projection", s.query, Step::kForwardQueryNorm, Step::kForwardProjection,
           "a*(n+r)*T: output of wq_b (or wq), held by forward");
  rows.keep_for_replay(Weight::kQuery, "attention.query_projection_kept", s.query,
                       Step::kForwardProjection,
                       "a*(n+r)*T: saved though backward does not use it");
  rows.use("attention.rotation", 5 * s.query_rotary, Step::kForwardLayout, Step::kForwardLayout,
           "5a*r*T: fp32 in and out, and turned");
  rows.keep_if(s.is_flex, "attention.query", s.query,
               {.born = Step::kForwardLayout,
                .last_forward_use = Step::kForwardProjection,
                .dies = Step::kBackwardAttention},
               "a*(n+r)*T: both parts, put together");
}

void add_keys_and_values(LatentRows& rows) {
  const TitanMla& s = rows.sizes.mla;
  rows.keep_if(
      rows.sizes.saves_product(Weight::kKey), "attention.key_value_down", s.key_value_down,
      {.born = Step::kForwardQkv, .last_forward_use = Step::kForwardKeyNorm, .dies = kKeys},
      "(lk+r)*T: output of wkv_a");
  rows.keep(
      "attention.key_value_norm", s.key_value_norm,
      {.born = Step::kForwardKeyNorm, .last_forward_use = Step::kForwardLayout, .dies = kKeys},
      "lk*T: input of wkv_b");
  rows.block.keep_or_write_again(
      "attention.key_norm_statistics", rows.block.shape.tokens, DType::kFp32,
      {.born = Step::kForwardKeyNorm, .last_forward_use = Step::kForwardKeyNorm, .dies = kKeys},
      "T: reciprocal root mean square");
  const Life to_attention{.born = Step::kForwardLayout,
                          .last_forward_use = Step::kForwardProjection,
                          .dies = Step::kBackwardAttention};
  rows.keep_if(s.is_flex || rows.sizes.saves_product(Weight::kValue), "attention.key_value",
               s.key_value, to_attention, "a*(n+v)*T: output of wkv_b, values among it");
  rows.keep_if(s.is_flex, "attention.key", s.query, to_attention,
               "a*(n+r)*T: the turned part repeated for every head");
}

void add_core(LatentRows& rows) {
  TitanBlock& block = rows.block;
  const TitanMla& s = rows.sizes.mla;
  const Life saved{.born = Step::kForwardAttention,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardAttention};
  block.rows.keep("attention.log_sum_exp", block.shape.query_heads * block.shape.tokens,
                  DType::kFp32, saved, "a*T");
  block.rows.keep("attention.output", rows.of(s.output), block.shape.dtype, saved, "a*v*T");
  rows.keep_for_replay(Weight::kOutput, "attention.projection_kept", rows.sizes.sequence,
                       Step::kForwardProjection, "h*T: saved though backward does not use it");
  rows.use("attention.output_gradient", s.output, Step::kBackwardProjection,
           Step::kBackwardAttention, "a*v*T");
  rows.use("attention.query_gradient", s.query, Step::kBackwardAttention, kQueries, "a*(n+r)*T");
  rows.use("attention.key_and_value_gradients", s.query + s.output, Step::kBackwardAttention,
           Step::kBackwardLayout, "a*(n+r)*T + a*v*T");
  block.rows.split_last({rows.of(s.query), rows.of(s.output)});
  const std::int64_t workspace = s.is_flex ? rows.sizes.log_sum_exp : rows.sizes.workspace;
  block.rows.use_as(Component::kWorkspace, "attention.backward_workspace",
                    div_ceil(workspace, bytes_of(DType::kFp32)), DType::kFp32,
                    Step::kBackwardAttention, Step::kBackwardAttention,
                    s.is_flex ? "a*T: sums of gradients times outputs" : "cuDNN 9 closed form");
}

void add_gradients(LatentRows& rows) {
  const TitanMla& s = rows.sizes.mla;
  const std::int64_t stream = rows.sizes.sequence;
  rows.use("attention.key_value_gradient", s.key_value, Step::kBackwardLayout, kKeys, "a*(n+v)*T");
  rows.use("attention.key_value_norm_gradients", 3 * s.key_value_norm, kKeys, kKeys,
           "3*lk*T: of the norm's output and input, and its input once more");
  rows.use("attention.key_value_down_gradient", s.key_value_down, kKeys, kKeys, "(lk+r)*T");
  rows.use("attention.query_rotation_gradient", 5 * s.query_rotary, kQueries, kQueries,
           "5a*r*T: fp32 in and out, and turned back");
  rows.use("attention.query_projection_gradient", s.query, kQueries, Step::kBackwardQkv,
           "a*(n+r)*T");
  rows.use("attention.query_norm_gradients", 2 * s.query_down, kQueries, Step::kBackwardQkv,
           "2*lq*T: of the norm's output and input");
  rows.use("attention.input_gradient", stream, kKeys, Step::kBackwardQkv, "h*T: of wkv_a");
  rows.use("attention.second_input_gradient", 2 * stream, Step::kBackwardQkv, Step::kBackwardQkv,
           "2h*T: of wq_a (or wq), and the sum");
  rows.block.rows.split_last({rows.of(stream), rows.of(stream)});
  rows.use("attention.norm_gradient", stream, Step::kBackwardNorm, Step::kBackwardNorm, "h*T");
}

void add_weight_gradients(LatentRows& rows) {
  rows.weight_gradient("attention.projection_gradient", Weight::kOutput, Step::kBackwardProjection,
                       "a*v*h: gradient of wo");
  rows.weight_gradient("attention.key_value_weight_gradient", Weight::kValue, kKeys,
                       "lk*a*(n+v): gradient of wkv_b");
  rows.weight_gradient("attention.key_value_down_weight_gradient", Weight::kKey, kKeys,
                       "h*(lk+r): gradient of wkv_a");
  rows.weight_gradient("attention.query_weight_gradient", Weight::kQuery, kQueries,
                       "gradient of wq_b or wq");
  if (rows.sizes.mla.query_down > 0) {
    rows.weight_gradient("attention.query_down_weight_gradient", Weight::kQueryDown,
                         Step::kBackwardQkv, "h*lq: gradient of wq_a");
  }
}

}  // namespace

void add_titan_latent_attention(TitanBlock& block) {
  LatentRows rows{.block = block, .sizes = TitanSizes(block)};
  add_inputs(rows);
  add_queries(rows);
  add_keys_and_values(rows);
  add_core(rows);
  add_gradients(rows);
  add_weight_gradients(rows);
  const std::int64_t stream = rows.sizes.sequence;
  rows.use("output_gradient", stream, Step::kBackwardOutput, Step::kBackwardInput,
           "h*T: gradient of the residual stream");
  rows.use("output", stream, Step::kForwardOutput, Step::kForwardOutput,
           "h*T: becomes the input of the next layer");
}

}  // namespace shardplan::torchtitan
