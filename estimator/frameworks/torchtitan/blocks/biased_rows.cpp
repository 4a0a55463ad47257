// models/gpt_oss/model/moe.py, _run_experts_grouped_mm and swiglu (gpt_oss/experts.cpp plays them).
// Letters in moe.h; N of the P rows are an expert's.
#include "estimator/frameworks/torchtitan/blocks/biased_rows.h"

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {
namespace {

constexpr Step kBound = Step::kForwardActivation;  // gate, its sigmoid, and their product
constexpr Step kRaised = Step::kForwardSharedFc2;  // up with one added, and the product of both
constexpr Step kGateBackward = Step::kBackwardActivation;
constexpr Step kSecondBias = Step::kForwardFc2Reduce;

void add_first_product(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.first_product", s.wide_inner, Step::kForwardFc1, Step::kForwardFc1,
        "2*fe/et*P: output of mlp1");
  m.use("experts.first_bias", s.wide_inner, Step::kForwardFc1, kSecondBias,
        "2*fe/et*P: repeated for every row, held to the end");
  m.keep("experts.biased", s.wide_inner, {Step::kForwardFc1, kRaised, kGateBackward},
         "2*fe/et*P: their sum, whose bounds backward looks at");
  m.keep("experts.bias_rows", 2 * s.bias_rows,
         {Step::kForwardFc1, kSecondBias, MoeRows::kFirstInput},
         "2*N: the expert of every row, int64, of either bias");
  m.block.rows.split_last({m.of(s.bias_rows), m.of(s.bias_rows)});
}

void add_gate(MoeRows& m) {
  const std::int64_t inner = m.moe.inner;
  m.keep("experts.gate", inner, {kBound, kRaised, kGateBackward}, "fe/et*P: bounded");
  m.keep("experts.sigmoid", inner, {kBound, kBound, kGateBackward}, "fe/et*P: of 1.702 times gate");
  m.keep("experts.gated", inner, {kBound, kRaised, kGateBackward}, "fe/et*P: gate times sigmoid");
  m.use("experts.up", inner, kBound, kRaised, "fe/et*P: bounded");
  m.keep("experts.raised", inner, {kRaised, kRaised, kGateBackward}, "fe/et*P: up + 1");
  m.keep("experts.product", inner, {kRaised, Step::kForwardFc2, Step::kBackwardFc2},
         "fe/et*P: input of mlp2");
}

// Output and its sum with the bias are there at once.
void add_second_product(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.second_product", s.expert_input, kSecondBias, kSecondBias, "h*P: output of mlp2");
  m.use("experts.second_bias", s.second_biases + s.expert_input, kSecondBias, kSecondBias,
        "h*(N+P): repeated for every row, and with zeros behind");
  m.block.rows.split_last({m.of(s.second_biases), m.of(s.expert_input)});
}

}  // namespace

void add_biased_expert_products(MoeRows& m) {
  add_first_product(m);
  add_gate(m);
  add_second_product(m);
}

// Both factors' gradients first; then each half's, a tensor of both with zeros, and their sum.
void add_biased_expert_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.output_gradient", s.expert_input, Step::kBackwardFc2, Step::kBackwardFc2, "h*P");
  m.use("experts.product_gradient", s.inner, Step::kBackwardFc2, kGateBackward, "fe/et*P");
  m.use("experts.factor_gradients", 2 * s.inner, kGateBackward, kGateBackward,
        "2*fe/et*P: of gate times sigmoid, and of up + 1");
  m.block.rows.split_last({m.of(s.inner), m.of(s.inner)});
  m.use("experts.half_gradients", s.inner + s.wide_inner, MoeRows::kSecondInput,
        MoeRows::kSecondInput, "3*fe/et*P: of one half, and with zeros for the other");
  m.block.rows.split_last({m.of(s.inner), m.of(s.wide_inner)});
  m.use("experts.biased_gradient", s.wide_inner, MoeRows::kSecondInput, MoeRows::kFirstInput,
        "2*fe/et*P");
  m.use("experts.input_gradient", s.expert_input, MoeRows::kFirstInput, MoeRows::kUnpad, "h*P");
}

void add_biased_weight_gradients(MoeRows& m) {
  TitanBlock& block = m.block;
  const Step last = block.groups_experts() ? MoeRows::kReduce : Step::kBackwardInput;
  const auto add = [&](std::string_view name, Weight weight, Step born, Step dies,
                       std::string_view formula) {
    block.rows.use(name, m.of(m.sizes.weight(weight)), block.weight_gradient(), born, dies,
                   formula);
  };
  add("experts.down_bias_gradient", Weight::kDownBias, Step::kBackwardFc2, last,
      "E/e*h: gradient of mlp2's bias");
  add("experts.down_gradient", Weight::kDown, Step::kBackwardFc2, last,
      "E/e*h*fe/et: gradient of mlp2");
  add("experts.gate_up_bias_gradient", Weight::kGateBias, MoeRows::kFirstInput, last,
      "2*E/e*fe/et: gradient of mlp1's bias");
  add("experts.gate_up_gradient", Weight::kGate, MoeRows::kFirstInput, last,
      "2*E/e*h*fe/et: gradient of mlp1");
  add("router.weight_gradient", Weight::kRouter, MoeRows::kScores, Step::kBackwardInput, "E*h");
}

// Both biases and the second product, before the sum is taken apart into rows of tokens; and what
// was gathered for the experts, which their group keeps to the end of their forward.
std::int64_t biased_replay_bytes(const MoeRows& m) {
  const TitanMoe& s = m.moe;
  const TitanBlock& block = m.block;
  const bool gathers = block.groups_experts() && expert_shard_size(block.job, block.plan) > 1;
  const std::int64_t gathered = gathers ? bytes_of(DType::kBf16) * block.parameters.experts : 0;
  return s.wide_inner + s.second_biases + 3 * s.expert_input - s.scored_rows + gathered;
}

}  // namespace shardplan::torchtitan
