// From the last hidden states to the loss without all logits at once.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/job.h"

namespace shardplan::huggingface {

struct HeadShape {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  bool has_last_tokens = true;  // which predict none; else labels were shifted over all ranks
  bool scales_logits = false;
  bool caps_logits = false;
};

// TRL's chunked_nll: 256 tokens at a time under a checkpoint each, all in fp32 but what autocast
// casts; with the entropy that it logs. Source: TRL 1.8.0 trainer/sft_trainer.py _chunk,
// _chunked_cross_entropy_loss.
eager::Tensor chunked_loss(eager::Graph& graph, const eager::Tensor& hidden,
                           const eager::Tensor& weight, const HeadShape& shape);

// Calls of the head for one microbatch's loss in chunks, in either direction; 0: the loss takes all
// tokens at once.
double num_loss_chunks(const Job& job, const Plan& plan);

// Liger's fused linear cross entropy: gradients are made with the loss, a chunk of tokens at a time
// (ops/fused_linear_cross_entropy.py). Of a frozen weight none is made. `adds_in_fp32`: up to
// 0.8.2 a chunk's gradient of the weight becomes fp32 before it is added.
eager::Tensor fused_linear_loss(eager::Graph& graph, const eager::Tensor& hidden,
                                const eager::Tensor& weight, const HeadShape& shape,
                                bool adds_in_fp32);

// Cut Cross Entropy: the logarithm of the sums alone (apple/ml-cross-entropy 25.1.1 cce.py,
// cce_lse_forward.py, cce_backward.py; arXiv 2411.09009).
eager::Tensor cut_cross_entropy(eager::Graph& graph, const eager::Tensor& hidden,
                                const eager::Tensor& weight, const HeadShape& shape);

// Tokens of one of Liger's chunks.
std::int64_t liger_chunk(const HeadShape& shape);

// --- of the logits that the model returns ---

// Liger's cross entropy writes the gradient over the logits as it makes the loss; a loss of each
// token, `is_scaled`, multiplies it with that of the loss (ops/cross_entropy.py).
eager::Tensor liger_cross_entropy(eager::Graph& graph, const eager::Tensor& logits, bool is_scaled);

// The cross entropy of a copy of all logits in fp32, without the last of each sequence, by Liger's
// kernel where that has taken PyTorch's place. Source: LLaMA-Factory ff6d4d1
// src/llamafactory/v1/core/base_trainer.py compute_log_probs.
eager::Tensor loss_again(eager::Graph& graph, const eager::Tensor& logits,
                         const eager::Tensor& labels, const HeadShape& shape, bool uses_liger);

// The cross entropy of each token of logits as they are. `chunk` tokens at a time, if any, are
// worked on again in the backward pass, which writes their gradients over them. Source: ms-swift
// 3602360 swift/trainers/utils.py per_token_loss_func_sp, swift/sequence_parallel/utils.py
// ChunkedCrossEntropyLoss.
eager::Tensor loss_per_token(eager::Graph& graph, const eager::Tensor& logits,
                             const eager::Tensor& labels, const HeadShape& shape,
                             std::int64_t chunk);

// The sum over tokens that count, all but the last of each sequence, of their cross entropy in fp32
// times a constant: their own probability, or the entropy of their 20 largest logits. Sources:
// LLaMA-Factory ff6d4d1 src/llamafactory/train/trainer_utils.py dft_loss_func, eaft_loss_func;
// ms-swift 3602360 swift/trainers/utils.py per_token_loss_func (enable_dft_loss).
eager::Tensor loss_by_probability(eager::Graph& graph, const eager::Tensor& logits,
                                  const eager::Tensor& labels, const HeadShape& shape);
eager::Tensor loss_by_entropy(eager::Graph& graph, const eager::Tensor& logits,
                              const eager::Tensor& labels, const HeadShape& shape);
// The same of copies of the rows that count, in the logits' type; of several sequences behind a
// copy of all but their last tokens (axolotl 067b021 monkeypatch/loss/eaft.py).
eager::Tensor loss_by_entropy_of_rows(eager::Graph& graph, const eager::Tensor& logits,
                                      const eager::Tensor& labels, const HeadShape& shape);

}  // namespace shardplan::huggingface
