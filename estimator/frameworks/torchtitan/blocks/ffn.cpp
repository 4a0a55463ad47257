// Feed-forward part of a torchtitan layer: w2(silu(w1(x)) * w3(x)), each operation on its own in
// eager mode; the compiled block recomputes silu in backward.
#include "estimator/frameworks/torchtitan/blocks/ffn.h"

#include <span>

#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {
namespace {

constexpr Step kReplayed = Step::kBackwardOutput;

void add_normed_input(TitanBlock& block) {
  const BlockShape& s = block.shape;
  add_titan_ffn_input(block);
  const std::int64_t copies = block.is_autocast() && !block.compiles_blocks() ? 2 : 1;
  const bool gathered =
      s.gathers_sequence && (!block.compiles_blocks() || block.has_whole_layers());
  block.keep_or_write_again("ffn.norm_output",
                            copies * (gathered ? block.gathered() : block.sequence()), s.dtype,
                            {.born = Step::kForwardFfnNorm,
                             .last_forward_use = Step::kForwardFc1,
                             .dies = Step::kBackwardFc1},
                            "h*T (gathered under tp; two casts under autocast)");
}

// Of a compiled block that replays, one kernel writes the product again and the gradients of gate
// and up; of one that does not, a gradient is written over what it uses up. Every second layer
// replays, where the stage's last layer is one of them: there activations are at their most.
bool replays_compiled(const TitanBlock& block) {
  return block.compiles_blocks() && block.plan.recompute.granularity != RecomputeGranularity::kNone;
}

void add_gate(TitanBlock& block, const TitanSizes& sizes, std::int64_t width) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool replays = replays_compiled(block);
  const auto keep_product = [&](Weight weight, std::string_view name, Life life,
                                std::string_view formula) {
    if (sizes.saves_product(weight)) {
      rows.keep(name, width, s.dtype, life, formula);
    } else {
      block.keep_or_write_again(name, width, s.dtype, life, formula);
    }
  };
  keep_product(Weight::kGate, "ffn.gate",
               {.born = Step::kForwardFc1,
                .last_forward_use = Step::kForwardActivation,
                .dies = replays ? Step::kBackwardActivation : Step::kBackwardFc1},
               "f*T/t: output of w1");
  const Life to_activation{.born = Step::kForwardActivation,
                           .last_forward_use = Step::kForwardActivation,
                           .dies = Step::kBackwardActivation};
  if (!block.compiles_blocks()) {
    block.keep_or_write_again("ffn.silu", width, s.dtype, to_activation, "f*T/t");
  }
  keep_product(Weight::kUp, "ffn.up", to_activation, "f*T/t: output of w3");
  block.keep_or_write_again("ffn.product", width, s.dtype,
                            {.born = Step::kForwardActivation,
                             .last_forward_use = Step::kForwardFc2,
                             .dies = replays ? Step::kBackwardActivation : Step::kBackwardFc2},
                            "f*T/t: input of w2");
  rows.use("ffn.product_gradient", width, s.dtype, Step::kBackwardFc2, Step::kBackwardActivation,
           "f*T/t");
  const bool writes_over = block.compiles_blocks() && !replays;
  rows.use("ffn.gate_up_gradients", (writes_over ? 1 : 2) * width, s.dtype,
           Step::kBackwardActivation, Step::kBackwardFc1, "2f*T/t");
  if (!writes_over) {
    rows.split_last({width, width});
  }
}

// The compiled block adds gradients to the residual stream's in its last kernel.
void add_input_gradients(TitanBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool waits = block.compiles_blocks();
  const Step added = Step::kBackwardQkv;
  const bool reduces = s.gathers_sequence;
  rows.use("ffn.input_gradients", 2 * block.gathered(), s.dtype, Step::kBackwardFc1,
           waits && !reduces ? added : Step::kBackwardFc1, "2h*T: of w1 and w3");
  rows.split_last({block.gathered(), block.gathered()});
  if (!waits) {
    rows.use("ffn.norm_gradient", 2 * block.sequence(), block.residual(), Step::kBackwardFfnNorm,
             Step::kBackwardFfnNorm, "2h*u");
    rows.split_last({block.sequence(), block.sequence()});
    return;
  }
  rows.use("ffn.reduced_gradient", reduces ? block.sequence() : 0, s.dtype, Step::kBackwardFfnNorm,
           added, "h*u: of both, after the reduce-scatter");
  rows.use("ffn.norm_gradient", block.sequence(), block.residual(), Step::kBackwardFfnNorm, added,
           "h*u");
}

void add_weight_casts(TitanBlock& block) {
  add_titan_weight_casts(block);
  constexpr std::size_t kProducts = 7;  // the norms behind them are not cast
  const std::vector<std::int64_t> weights = block.layer_weights();
  block.rows.split_last(std::span(weights).first(kProducts));
}

}  // namespace

// bf16 copies of a layer's weights: held by the graph, or by autocast's cache (a row of the state)
// and cast again by the replay.
void add_titan_weight_casts(TitanBlock& block) {
  const std::int64_t experts = block.compiles_parts() ? 3 * block.expert_weights().front() : 0;
  const std::int64_t casts = block.parameters.layer - block.parameters.layer_norms - experts;
  const DType dtype = block.shape.dtype;
  if (block.has_whole_layers()) {
    block.rows.keep("weight_casts", casts, dtype,
                    {.born = Step::kForwardQkv,
                     .last_forward_use = Step::kForwardFc2,
                     .dies = Step::kBackwardQkv},
                    "n: bf16 copies of the weights, held by the graph");
  } else {
    block.rows.use("weight_casts_again", casts, dtype, Step::kBackwardOutput, Step::kBackwardQkv,
                   "n: bf16 copies of the weights, cast again by the replay");
  }
}

// The compiled block keeps the output of wo and adds the residual again.
void add_titan_ffn_input(TitanBlock& block) {
  block.keep_or_write_again("ffn.input", block.sequence(),
                            block.compiles_blocks() ? block.shape.dtype : block.residual(),
                            {.born = Step::kForwardProjection,
                             .last_forward_use = Step::kForwardOutput,
                             .dies = Step::kBackwardFfnNorm},
                            "h*u: residual stream after attention");
  block.keep_or_write_again("ffn.norm_statistics", block.shape.sharded_tokens, DType::kFp32,
                            {.born = Step::kForwardFfnNorm,
                             .last_forward_use = Step::kForwardFfnNorm,
                             .dies = Step::kBackwardFfnNorm},
                            "u: reciprocal root mean square");
}

void add_titan_ffn(TitanBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t weight = s.hidden * block.ffn_width();
  const TitanSizes sizes(block);
  add_normed_input(block);
  add_gate(block, sizes, block.ffn_width() * s.tokens);
  rows.use("ffn.output", block.gathered(), s.dtype, Step::kForwardFc2, Step::kForwardOutput, "h*T");
  const bool saves_output = sizes.saves_product(Weight::kDown);
  if (saves_output && block.recomputes_ops() && !block.compiles_blocks()) {
    rows.keep(
        "ffn.output_kept", block.gathered(), s.dtype,
        {.born = Step::kForwardOutput, .last_forward_use = Step::kForwardOutput, .dies = kReplayed},
        "h*T: seventh matmul, saved though backward does not use it");
    if (s.gathers_sequence) {
      rows.keep("ffn.reduced_output", block.sequence(), s.dtype,
                {.born = Step::kForwardOutput,
                 .last_forward_use = Step::kForwardOutput,
                 .dies = kReplayed},
                "h*u: output of the reduce-scatter, saved");
    }
  }
  if (s.gathers_sequence) {
    rows.use_as(Component::kCommunication, "ffn.gathered_gradient", block.gathered(), s.dtype,
                Step::kBackwardFc2, Step::kBackwardFc2, "h*T");
  }
  rows.use("ffn.down_gradient", weight, block.weight_gradient(),
           replays_compiled(block) ? Step::kBackwardFc1 : Step::kBackwardFc2, Step::kBackwardInput,
           "h*f/t: gradient of w2");
  rows.use("ffn.gate_up_weight_gradients", 2 * weight, block.weight_gradient(), Step::kBackwardFc1,
           Step::kBackwardInput, "2h*f/t: gradients of w1 and w3");
  rows.split_last({weight, weight});
  add_input_gradients(block);
  if (block.is_autocast()) {
    add_weight_casts(block);
  }
}

}  // namespace shardplan::torchtitan
