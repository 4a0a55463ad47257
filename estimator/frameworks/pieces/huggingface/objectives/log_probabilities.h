// Log-probabilities of the tokens of texts, of the logits that a model returns, as trainers of
// preferences take them; and what these trainers log of the logits. A tensor of `all` logits has
// the last token of each sequence, which predicts none; `rows` are a view without it.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"

namespace shardplan::huggingface {

// A view of all logits but those of each sequence's last token.
eager::Tensor without_last(eager::Graph& graph, const eager::Tensor& all, const HeadShape& shape);

// Of each token, [sequences, s - 1]: of logits in fp32 by their sums, else by the log-softmax of
// one sequence after the other. Source: TRL 1.8.0 trainer/utils.py selective_log_softmax.
eager::Tensor log_probabilities(eager::Graph& graph, const eager::Tensor& rows,
                                const eager::Tensor& labels, const HeadShape& shape);

// The same by one log-softmax, whose input is laid out anew where several sequences lie apart.
// Source: LLaMA-Factory ff6d4d1 src/llamafactory/train/trainer_utils.py get_batch_logps; PyTorch
// 2.11 aten/src/ATen/native/cuda/SoftMax.cu host_softmax.
eager::Tensor log_probabilities_at_once(eager::Graph& graph, const eager::Tensor& rows,
                                        const eager::Tensor& labels, const HeadShape& shape);

// A number of the log-probabilities of all tokens, and of those of another tensor, if any.
eager::Tensor compared(eager::Graph& graph, const eager::Tensor& log_probabilities,
                       const eager::Tensor& of_reference, const HeadShape& shape);

// The cross entropy of the chosen half of a batch of pairs, of its logits in a copy. Source: TRL
// 1.8.0 experimental/orpo/orpo_trainer.py cross_entropy_loss.
eager::Tensor chosen_cross_entropy(eager::Graph& graph, const eager::Tensor& all,
                                   const eager::Tensor& labels, const HeadShape& shape);

// The entropy that is logged: of a copy of the rows, 128 at a time. Source: TRL 1.8.0
// trainer/utils.py entropy_from_logits.
void log_entropy_of_rows(eager::Graph& graph, const eager::Tensor& rows, const HeadShape& shape);

// Means of logits that are logged, of copies of the chosen half and of the rejected. Source: TRL
// 1.8.0 trainer/dpo_trainer.py _compute_loss.
void log_means_of_halves(eager::Graph& graph, const eager::Tensor& rows);

}  // namespace shardplan::huggingface
