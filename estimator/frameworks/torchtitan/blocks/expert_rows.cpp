#include "estimator/frameworks/torchtitan/blocks/expert_rows.h"

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/ffn.h"
#include "estimator/frameworks/torchtitan/blocks/mixture.h"

namespace shardplan::torchtitan {
namespace {

// The gradient of gate is written over the output of w3.
void add_compiled_inner(MoeRows& m) {
  const std::int64_t inner = m.moe.inner;
  const Step activation = Step::kBackwardActivation;
  m.keep("experts.gate", inner, {Step::kForwardFc1, Step::kForwardActivation, activation},
         "fe/et*P: output of w1");
  m.keep("experts.up", inner,
         {Step::kForwardActivation, Step::kForwardActivation, MoeRows::kFirstInput},
         "fe/et*P: output of w3, in backward the gradient of w1's");
  m.keep("experts.product", inner,
         {Step::kForwardActivation, Step::kForwardFc2, Step::kBackwardFc2}, "fe/et*P: input of w2");
  m.use("experts.product_gradient", inner, Step::kBackwardFc2, activation, "fe/et*P");
  m.use("experts.up_gradient", inner, activation, MoeRows::kSecondInput, "fe/et*P");
}

// In bf16 each where its weight's cast was, and when all are there cast to fp32, which frees them
// one by one.
void add_cast_weight_gradients(MoeRows& m) {
  TitanBlock& block = m.block;
  const std::int64_t weight = block.expert_weights().front();
  const DType dtype = block.shape.dtype;
  block.rows.use("experts.down_gradient", weight, dtype, Step::kBackwardActivation,
                 MoeRows::kSecondInput, "E*h*fe: gradient of w2, in bf16");
  block.rows.use("experts.weight_gradients", 3 * weight, block.weight_gradient(),
                 MoeRows::kFirstInput, Step::kBackwardInput,
                 "3*E*h*fe: gradients of w1, w2 and w3");
  block.rows.split_last({weight, weight, weight});
  block.rows.use("experts.last_gradient", weight, dtype, MoeRows::kFirstInput, MoeRows::kFirstInput,
                 "E*h*fe: in bf16, not yet freed");
  block.rows.use("router.weight_gradient", block.shape.hidden * block.job.model.moe.num_experts,
                 block.weight_gradient(), MoeRows::kScores, Step::kBackwardInput, "E*h");
}

// Saved in the layout that backward reads; products read another, in one buffer.
void add_compiled_casts(MoeRows& m) {
  TitanBlock& block = m.block;
  const std::int64_t weight = block.expert_weights().front();
  const auto keep = [&](std::string_view name, Step born, Step dies) {
    m.keep(name, 2 * weight, {.born = born, .last_forward_use = Step::kForwardFc2, .dies = dies},
           "E*h*fe: bf16 copy");
  };
  keep("experts.gate_cast", Step::kForwardFc1, Step::kBackwardActivation);
  keep("experts.up_cast", Step::kForwardActivation, Step::kBackwardActivation);
  keep("experts.down_cast", Step::kForwardFc2, Step::kBackwardFc2);
  m.use("experts.weight_cast", 2 * weight, Step::kForwardFc1, Step::kForwardFc2,
        "E*h*fe: bf16 copy as the product reads it");
}

}  // namespace

void add_expert_products(MoeRows& m) {
  if (m.block.compiles_parts()) {
    add_compiled_inner(m);
    return;
  }
  const std::int64_t inner = m.moe.inner;
  const Step activation = Step::kBackwardActivation;
  m.keep("experts.gate", inner,
         {Step::kForwardFc1, Step::kForwardActivation, MoeRows::kSecondInput},
         "fe/et*P: output of w1");
  m.keep("experts.silu", inner, {Step::kForwardActivation, Step::kForwardActivation, activation},
         "fe/et*P");
  m.keep("experts.up", inner, {Step::kForwardActivation, Step::kForwardActivation, activation},
         "fe/et*P: output of w3");
  m.keep("experts.product", inner,
         {Step::kForwardActivation, Step::kForwardFc2, Step::kBackwardFc2}, "fe/et*P: input of w2");
  m.use("experts.product_gradient", inner, Step::kBackwardFc2, activation, "fe/et*P");
  m.use("experts.up_gradient", inner, activation, MoeRows::kSecondInput, "fe/et*P");
  m.use("experts.gate_gradient", inner, activation, MoeRows::kFirstInput,
        "fe/et*P: of silu, then of gate");
}

void add_expert_input_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.output_gradient", s.expert_input, Step::kBackwardFc2, Step::kBackwardFc2, "h*P");
  m.use("experts.input_gradient", s.padded_rows, MoeRows::kSecondInput, MoeRows::kUnpad,
        "h*P: of w3, and the sum");
  m.use("experts.second_input_gradient",
        m.block.is_autocast() ? s.expert_input + s.padded_rows : s.padded_rows,
        MoeRows::kFirstInput, MoeRows::kFirstInput, "h*P: of w1");
}

void add_compiled_expert_input_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const bool casts = m.block.is_autocast();
  m.use("experts.output_gradient", s.padded_rows, Step::kBackwardFc2, MoeRows::kFirstInput,
        "h*P: in fp32 under autocast");
  m.use("experts.cast_output_gradient", casts ? 2 * s.expert_input : 0, Step::kBackwardFc2,
        Step::kBackwardFc2, "2h*P: by rows, and as the product reads it");
  m.use("experts.input_gradient", s.padded_rows, MoeRows::kSecondInput, MoeRows::kUnpad,
        "h*P: of w3, and the sum");
  m.use("experts.addends", casts ? 2 * s.expert_input : 0, MoeRows::kSecondInput,
        MoeRows::kSecondInput, "2h*P: of w1 and w3 before they are added up");
}

void add_expert_weight_gradients(MoeRows& m) {
  TitanBlock& block = m.block;
  if (block.compiles_parts() && block.is_autocast()) {
    add_cast_weight_gradients(m);
    return;
  }
  const Step last = block.groups_experts() ? MoeRows::kReduce : Step::kBackwardInput;
  const std::int64_t weight = block.expert_weights().front();
  const DType dtype = block.weight_gradient();
  block.rows.use("experts.down_gradient", weight, dtype, Step::kBackwardFc2, last,
                 "E/e*h*fe/et: gradient of w2");
  block.rows.use("experts.up_weight_gradient", weight, dtype, MoeRows::kSecondInput, last,
                 "E/e*h*fe/et: gradient of w3");
  block.rows.use("experts.gate_weight_gradient", weight, dtype, MoeRows::kFirstInput, last,
                 "E/e*h*fe/et: gradient of w1");
  block.rows.use("router.weight_gradient", block.shape.hidden * block.job.model.moe.num_experts,
                 dtype, MoeRows::kScores, Step::kBackwardInput, "E*h");
}

void add_expert_casts(MoeRows& m) {
  TitanBlock& block = m.block;
  if (block.compiles_parts()) {
    add_compiled_casts(m);
  } else if (!block.has_whole_layers()) {
    block.rows.use("experts.weight_cast", block.expert_weights().front(), block.shape.dtype,
                   Step::kForwardFc1, Step::kForwardFc2, "E*h*fe: bf16 copy for one product");
  }
  add_titan_weight_casts(block);
}

}  // namespace shardplan::torchtitan
