// Experts of a layer by grouped products, rows of tokens sorted by expert, one product for all; or
// one expert after the other. Source: transformers 5.17 integrations/moe.py
// grouped_mm_experts_forward, models/qwen3_moe/modeling_qwen3_moe.py Qwen3MoeExperts,
// Qwen3MoeTopKRouter (mixtral's and qwen2_moe's are alike),
// models/deepseek_v2/modeling_deepseek_v2.py, models/deepseek_v3/modeling_deepseek_v3.py.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/layer_spec.h"
#include "estimator/plan/tuning.h"

namespace shardplan::huggingface {

struct Experts {
  eager::Parameter gate_up, down,
      router;  // [E, 2f, h], [E, h, f], [E, h]; without a gate [E, f, h]
  eager::Parameter gate_up_bias, down_bias, router_bias;  // [E, 2f], [E, h], [E]; undefined: none
  eager::Parameter input_scale, expert_scale;  // [h], [E]: of the router's input and its weights
  // Adapters: [r*E, in] and [out, r*E]; undefined: none.
  eager::Parameter gate_up_a, gate_up_b, down_a, down_b;
  eager::Parameter router_a, router_b;  // [r, h] and [E, r]
  // Of quantized weights, in whose place they are parameters; undefined: none.
  eager::Parameter gate_up_packed, down_packed;
  QuantizedWeights quantized;
  eager::Tensors scales;  // and what else their blocks need, which a module keeps
};

enum class RouterKind {
  kSoftmax,                // of scores in fp32; weights in the type of the router's product
  kWideSoftmax,            // the input and the router's weight become fp32; so are the weights
  kWideSigmoid,            // likewise, each score by itself
  kSigmoid,                // of scores in fp32 each by itself; so are the weights (MiniMax-M2)
  kNarrowSigmoid,          // of scores as they are, and so are the weights (LFM2)
  kNarrowSoftmax,          // likewise, but that autocast has softmax in fp32 (Mistral 4)
  kWideInput,              // kSoftmax of the input in fp32 (Hunyuan)
  kSoftmaxOfChosen,        // of the highest scores in fp32 (Granite)
  kNarrowSoftmaxOfChosen,  // the same in the type of the router's product (gpt-oss)
  kSoftmaxByExpert,        // of scores in fp32, and so are the weights, each scaled (Gemma 4)
  kSoftmaxBesideAutocast,  // all in fp32, which autocast leaves; the weights are cast (ERNIE 4.5)
};

struct ExpertSizes {
  RouterKind router = RouterKind::kSoftmax;
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  // of one expert
  std::int64_t experts = 0;
  std::int64_t chosen = 0;  // of a token
  bool is_eager = false;    // one after the other, else by grouped products
  bool is_gated = true;
  Activation activation = Activation::kSilu;
};

// Weights of the experts that the router chooses for every token, one for each row.
eager::Tensor weights_of_chosen(eager::Graph& graph, const Experts& experts,
                                const eager::Tensor& hidden, const ExpertSizes& sizes);

// Between both products of experts: halves of every row, or all of it without a gate.
eager::Tensor activated_rows(eager::Graph& graph, const eager::Tensor& rows,
                             const ExpertSizes& sizes);

// What the chosen experts make of the tokens, `sizes.hidden` wide, with those weights.
eager::Tensor experts_forward(eager::Graph& graph, const Experts& experts,
                              const eager::Tensor& hidden, const eager::Tensor& weights,
                              const ExpertSizes& sizes);

}  // namespace shardplan::huggingface
