// PyTorch's Muon on the matrices of layers, and fused AdamW on tables and vectors (PyTorch 2.11
// torch/optim/_muon.py; Newton-Schulz iterations in bf16).
#pragma once

#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

bool is_for_muon(const eager::Parameter& parameter);
// What the step of one matrix makes; `last` is what the step before has left.
void play_muon(eager::Graph& graph, const eager::Parameter& matrix, eager::Tensor& last);

// Of all layers: elements of their matrices, and the seconds of their step.
double muon_elements(const Job& job);
double muon_s(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
