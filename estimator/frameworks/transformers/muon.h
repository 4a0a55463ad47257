// Muon on the matrices of layers, and AdamW on tables and vectors: PyTorch's beside fused AdamW
// (PyTorch 2.11 torch/optim/_muon.py), or Moonshot's, which has both and of which LLaMA-Factory and
// ms-swift have copies (LLaMA-Factory ff6d4d1 src/llamafactory/third_party/muon/muon.py,
// v1/plugins/trainer_plugins/optimizers/muon_optimizer.py; ms-swift 3602360
// swift/optimizers/muon.py). Newton-Schulz iterations are in bf16.
#pragma once

#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

bool is_for_muon(const eager::Parameter& parameter);
// What the step of one matrix makes; `last` is what the step before has left.
void play_muon(eager::Graph& graph, const eager::Parameter& matrix, eager::Tensor& last);
// Newton-Schulz iterations by operators one after the other: of a matrix in bf16 whose smaller side
// is `small`, and which stays what the last one made.
struct SquareMatrices {
  eager::Tensor gram, polynomial;
};
void orthogonalize_by_operators(eager::Graph& graph, eager::Tensor& matrix, SquareMatrices& squares,
                                std::int64_t small);
// The same of Moonshot's, of which a rank holds so many elements: a sharded matrix's momentum is
// gathered whole.
void play_moonshot_muon(eager::Graph& graph, const eager::Parameter& matrix, std::int64_t held,
                        eager::Tensor& last);
// Its AdamW, one parameter after the other.
void play_moonshot_adamw(eager::Graph& graph, const eager::Parameter& parameter, std::int64_t held,
                         eager::Tensor& last);

// Of all layers: elements of their matrices, and the seconds of their step.
double muon_elements(const Job& job);
double muon_s(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
