// A plain float64 Llama-family model without any parallelism: loss and every gradient of one step.
// The host and CUDA backends are judged against it; it shares nothing with lowering.
//
// Block: x += attention(rms_norm(x)); x += ffn(rms_norm(x)). Attention: grouped-query, causal,
// optionally windowed, rotary positions (the two halves of a head rotate against each other, as in
// Llama). FFN: down(silu(gate(x)) * up(x)), or a mixture of experts: softmax over all experts, the
// topk largest (of equal ones the lower expert) renormalised to sum 1, plus shared experts.
// Loss: mean cross-entropy over all tokens + aux_coefficient * mean over MoE layers' sequences of
// E * sum_e f_e * P_e, f_e the share of a sequence's topk choices that fell on e, P_e its mean
// probability of e.
#pragma once

#include "estimator/plan/model_spec.h"
#include "validator/program/initial_tensors.h"
#include "validator/program/run_data.h"

namespace shardplan {

struct ReferenceSettings {
  double rms_epsilon = 1e-5;
  double rope_theta = 10000;
  double aux_coefficient = 0.01;
  bool chooses_in_turn = false;  // experts topk*p + k modulo their number at position p
};

struct ReferenceStep {
  double loss = 0;
  Tensors gradients;  // of the loss, one per tensor
};

ReferenceStep reference_step(const ModelSpec& model, const Tensors& tensors, const Batch& batch,
                             const ReferenceSettings& settings);
double reference_loss(const ModelSpec& model, const Tensors& tensors, const Batch& batch,
                      const ReferenceSettings& settings);

}  // namespace shardplan
