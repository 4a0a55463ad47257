// Sizes of a torchtitan mixture of experts (torchtitan/models/moe), in bytes, of one microbatch on
// one rank, every expert chosen equally often. Letters beside those of block_rows.h: E experts, n
// choices of a token, fe width of an expert, e ep, w bytes of an element of the residual stream.
#pragma once

#include <cstdint>

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

struct TitanMoe {
  explicit TitanMoe(const TitanBlock& block);

  bool exists = false;
  bool exchanges = false;          // ep > 1
  bool saves_exchanges = false;    // a checkpoint by operations does (not by Qwen3's list of them)
  bool scores_rows_first = false;  // before the experts, and without normalising (Llama 4)
  bool sums_gradient = false;      // every rank of tp or etp has a part of each expert
  bool is_biased = false;          // experts' products add biases (GPT-OSS)
  bool divides_bias = false;       // the second by the ranks of tp, which sum its product up

  // Elements.
  std::int64_t tokens = 0;   // T: a router sees them all, under tp as well
  std::int64_t chosen = 0;   // n*T
  std::int64_t sent = 0;     // R: n*T, or this rank's part where ep borrows tp (etp 1)
  std::int64_t experts = 0;  // E/e on this rank
  std::int64_t padded = 0;   // P: of R received rows and 8 for every expert, whole eights
  std::int64_t width = 0;    // fe/et

  // Bytes.
  std::int64_t logits = 0;         // E*T in bf16
  std::int64_t scores = 0;         // E*T in fp32
  std::int64_t choices = 0;        // n*T in int64
  std::int64_t weights = 0;        // n*T in fp32
  std::int64_t denominators = 0;   // T in fp32
  std::int64_t order = 0;          // R in int64
  std::int64_t order_weights = 0;  // R in fp32
  std::int64_t slots = 0;          // P in int32
  std::int64_t stream = 0;         // w*h*T
  std::int64_t rows = 0;           // w*h*R: sent, or received
  std::int64_t rows_and_zero = 0;  // w*h*(R+1): a row of zeros for what pads
  std::int64_t padded_rows = 0;    // w*h*P
  std::int64_t expert_input = 0;   // h*P in bf16
  std::int64_t inner = 0;          // fe/et*P in bf16
  std::int64_t all_rows = 0;       // w*h*n*T
  std::int64_t wide_rows = 0;      // h*R in fp32, where rows are scored first
  std::int64_t scored_rows = 0;    // else h*n*T in fp32; in bf16 under autocast
  std::int64_t summed = 0;         // and h*T in the same
  std::int64_t shared_inner = 0;   // fs*T in bf16: width of the shared experts; 0: none

  // Of biased experts: N, the rows of P that are an expert's, to which its biases are repeated.
  std::int64_t bias_rows = 0;      // N in int64
  std::int64_t wide_inner = 0;     // 2*fe/et*P in bf16: gate and up, one beside the other
  std::int64_t first_biases = 0;   // 2*fe/et*N in bf16
  std::int64_t first_slack = 0;    // 2*fe/et*(P-N)
  std::int64_t second_biases = 0;  // h*N
  std::int64_t second_slack = 0;   // h*(P-N)
  std::int64_t truths = 0;         // fe/et*P in bool

 private:
  void set_biases(const TitanBlock& block);
};

// Temporaries of index_put_ with accumulation: positions, sorted, where they were, and CUB's copies
// of both (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel).
std::int64_t index_sort_bytes(std::int64_t rows);

}  // namespace shardplan::torchtitan
