// Attention of GPT-OSS in torchtitan (models/gpt_oss/model/model.py, Attention): products with
// biases, flex_attention, and its output weighed by sinks, with what autograd keeps of it
// (gpt_oss/attention.cpp plays it). On one rank of cp, sharded.
#include "estimator/frameworks/torchtitan/blocks/sink_rows.h"

#include "estimator/frameworks/torchtitan/blocks/attention.h"
#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {
namespace {

constexpr Step kReplayed = Step::kBackwardOutput;
constexpr Step kWeighed = Step::kBackwardKeyValues;   // backward of the factors
constexpr Step kGraph = Step::kBackwardKeyValueFill;  // what the graph is called with

struct SinkRows {
  TitanBlock& block;
  const BlockShape& shape = block.shape;
  std::int64_t query = shape.query_width * shape.tokens;
  std::int64_t key = shape.key_value_width * shape.tokens;
  std::int64_t statistics = shape.query_heads * shape.tokens;

  void keep(std::string_view name, std::int64_t elements, DType dtype, Life life,
            std::string_view formula) {
    block.keep_or_write_again(name, elements, dtype, life, formula);
  }
  // What the compiled graph takes and returns outlives a checkpoint by operations.
  void save(std::string_view name, std::int64_t elements, DType dtype, Life life,
            std::string_view formula) {
    block.rows.keep(name, elements, dtype, life, formula);
  }
  void use(std::string_view name, std::int64_t elements, DType dtype, Step born, Step dies,
           std::string_view formula) {
    block.rows.use(name, elements, dtype, born, dies, formula);
  }
};

void add_inputs(SinkRows& rows) {
  TitanBlock& block = rows.block;
  const BlockShape& s = rows.shape;
  block.rows.keep("input", block.sequence(), s.dtype,
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardNorm},
                  "h*u: residual stream");
  rows.keep("attention.norm_statistics", s.sharded_tokens, DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u: reciprocal root mean square");
  rows.keep("attention.norm_output", s.gathers_sequence ? block.gathered() : block.sequence(),
            s.dtype,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardQkv},
            "h*T (gathered under tp): input of the products");
}

void add_rotation(SinkRows& rows) {
  const DType dtype = rows.shape.dtype;
  const bool checkpoints = rows.block.plan.recompute.granularity != RecomputeGranularity::kNone;
  rows.save("attention.rotary_cast", rotary_table_elements(rows.block.job), dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardOutput,
             .dies = checkpoints ? Step::kBackwardInput : Step::kBackwardLayout},
            "2*d*s: cosines and sines, cast for the block");
  rows.block.rows.rows.back().outlives_recompute = true;
  rows.use("attention.rotation", 3 * rows.query + rows.key, dtype, Step::kForwardLayout,
           Step::kForwardLayout,
           "(3a+k)*d*T/t: outputs of wq and wk, and both products of queries");
  rows.block.rows.split_last({rows.query, rows.key, rows.query, rows.query});
  rows.use("attention.rotation_gradient", 2 * rows.query, dtype, Step::kBackwardLayout,
           Step::kBackwardLayout, "2*a*d*T/t: of both halves and of the product with sines");
}

void add_core(SinkRows& rows) {
  const DType dtype = rows.shape.dtype;
  const Life to_graph{.born = Step::kForwardLayout,
                      .last_forward_use = Step::kForwardProjection,
                      .dies = Step::kBackwardAttention};
  rows.save("attention.query", rows.query, dtype, to_graph, "a*d*T/t: rotated");
  rows.save("attention.key", rows.key, dtype, to_graph, "k*d*T/t: rotated");
  rows.save("attention.value", rows.key, dtype,
            {.born = Step::kForwardQkv,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "k*d*T/t: output of wv");
  rows.save("attention.output", rows.query, dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = kGraph},
            "a*d*T/t");
  rows.save("attention.log_sum_exp", rows.statistics, DType::kFp32,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = Step::kBackwardAttention},
            "a*T/t: in powers of two");
  const bool saves_ops = rows.block.recomputes_ops();
  if (saves_ops) {
    rows.save("attention.scaled_statistics", rows.statistics, DType::kFp32,
              {.born = Step::kForwardAttention,
               .last_forward_use = Step::kForwardProjection,
               .dies = kReplayed},
              "a*T/t: natural logarithms, which the graph returns");
  } else {
    rows.use("attention.scaled_statistics", rows.statistics, DType::kFp32, Step::kForwardAttention,
             Step::kForwardProjection, "a*T/t: natural logarithms");
  }
}

void add_factors(SinkRows& rows) {
  const DType dtype = rows.shape.dtype;
  rows.keep("attention.sink_factors", rows.statistics, DType::kFp32,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = kWeighed},
            "a*T/t: sigmoid of statistics less sinks");
  rows.keep("attention.cast_factors", rows.statistics, dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = kWeighed},
            "a*T/t: the same in bf16, factor of the output");
  rows.keep("attention.weighted_output", rows.query, dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardProjection},
            "a*d*T/t: input of wo");
  rows.use("attention.weighted_gradient", rows.query, dtype, Step::kBackwardProjection, kWeighed,
           "a*d*T/t: gradient of wo's input");
  rows.use("attention.factor_gradient", rows.query, dtype, kWeighed, kWeighed,
           "a*d*T/t: of the factors, before it is summed over a head");
  rows.use("attention.output_gradient", rows.query, dtype, kWeighed, Step::kBackwardAttention,
           "a*d*T/t");
  rows.use("attention.statistics_gradient", rows.statistics, DType::kFp32, kWeighed,
           Step::kBackwardAttention, "a*T/t");
}

void add_graph_gradients(SinkRows& rows) {
  const DType dtype = rows.shape.dtype;
  rows.use("attention.output_gradient_copy", rows.query, dtype, kGraph, Step::kBackwardAttention,
           "a*d*T/t: by heads, as the graph takes it");
  rows.block.rows.use_as(Component::kWorkspace, "attention.backward_workspace", rows.statistics,
                         DType::kFp32, kGraph, Step::kBackwardAttention,
                         "a*T/t: sums of gradients times outputs, less statistics'");
  rows.use("attention.qkv_gradient", rows.query + 2 * rows.key, dtype, Step::kBackwardAttention,
           Step::kBackwardQkv, "(a+2k)*d*T/t");
  rows.block.rows.split_last({rows.query, rows.key, rows.key});
}

// Parts of sums over all rows, which blocks of the kernel leave each other.
void add_bias_sums(SinkRows& rows) {
  const TitanSizes sizes(rows.block);
  const auto add = [&](std::string_view name, Weight weight, Step step) {
    rows.use(name, sizes.bias_sum(weight) / bytes_of(DType::kFp32), DType::kFp32, step, step,
             "parts of the gradient of a bias (Reduce.cuh, global_memory_size)");
  };
  add("attention.output_bias_sum", Weight::kOutput, Step::kBackwardProjection);
  add("attention.query_bias_sum", Weight::kQuery, Step::kBackwardQkv);
}

}  // namespace

void add_titan_sink_attention(TitanBlock& block) {
  SinkRows rows{.block = block};
  add_inputs(rows);
  add_rotation(rows);
  add_core(rows);
  add_factors(rows);
  add_graph_gradients(rows);
  add_bias_sums(rows);
  add_titan_attention_ends(block, false);
}

}  // namespace shardplan::torchtitan
