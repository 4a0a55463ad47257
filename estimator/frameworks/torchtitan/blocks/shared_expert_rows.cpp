#include "estimator/frameworks/torchtitan/blocks/shared_expert_rows.h"

#include "estimator/frameworks/torchtitan/blocks/mixture.h"
#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {

void add_shared_experts(MoeRows& m) {
  const std::int64_t inner = m.moe.shared_inner;
  if (inner == 0) {
    return;
  }
  const Step born = Step::kForwardUnsort;
  const Step activation = Step::kBackwardSharedActivation;
  const auto keep_product = [&](Weight weight, std::string_view name, Step dies,
                                std::string_view formula) {
    const Life life{.born = born, .last_forward_use = born, .dies = dies};
    if (m.sizes.saves_product(weight)) {
      m.block.rows.keep(name, m.of(inner), m.block.shape.dtype, life, formula);
    } else {
      m.keep(name, inner, life, formula);
    }
  };
  keep_product(Weight::kSharedGate, "shared.gate", Step::kBackwardSharedFc1,
               "fs*T: output of their w1");
  keep_product(Weight::kSharedUp, "shared.up", activation, "fs*T: output of their w3");
  m.keep("shared.silu", inner, {born, born, activation}, "fs*T");
  m.keep("shared.product", inner, {born, born, Step::kBackwardSharedFc2},
         "fs*T: input of their w2");
  m.use("shared.output", m.sizes.sequence, born, Step::kForwardCombine, "h*T");
  if (m.block.recomputes_ops() && m.sizes.saves_product(Weight::kSharedDown)) {
    m.block.rows.keep("shared.output_kept", m.of(m.sizes.sequence), m.block.shape.dtype,
                      {.born = Step::kForwardOutput,
                       .last_forward_use = Step::kForwardOutput,
                       .dies = Step::kBackwardOutput},
                      "h*T: saved though backward does not use it");
  }
}

void add_shared_expert_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const std::int64_t inner = s.shared_inner;
  const Step activation = Step::kBackwardSharedActivation;
  const Step input = Step::kBackwardSharedFc1;
  m.use("shared.product_gradient", inner, Step::kBackwardSharedFc2, activation, "fs*T");
  m.use("shared.gate_up_gradients", 2 * inner, activation, input, "2*fs*T");
  m.block.rows.split_last({m.of(inner), m.of(inner)});
  m.use("shared.input_gradients", m.sizes.sequence, input, input, "h*T: of their w1");
  m.use("shared.input_gradient", m.sizes.sequence, input, Step::kBackwardFfnNorm,
        "h*T: of all experts once it has been added to");
  const std::int64_t weight = m.of(m.sizes.weight(Weight::kSharedGate));
  const auto of_weight = [&](std::string_view name, Step born) {
    m.block.rows.use(name, weight, m.block.weight_gradient(), born, Step::kBackwardInput,
                     "h*fs: gradient of a shared weight");
  };
  of_weight("shared.down_gradient", Step::kBackwardSharedFc2);
  of_weight("shared.up_weight_gradient", input);
  of_weight("shared.gate_weight_gradient", input);
}

}  // namespace shardplan::torchtitan
