// The router of a mixture of experts: probabilities, the likeliest experts of every row with their
// weights, how often an expert was chosen, and the gradient with that of the auxiliary loss.
//   p = softmax(logits);  w_k = p_k / sum of p over the choices
// experts is at most 1024, num_choices at most experts and 32. Integers below 2^24 are exact in
// float, so that counts repeat bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// Row i of `rows` is of sequence (first_row + i) / sequence_rows; there are `sequences`.
struct RouterShape {
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t num_choices = 0;
  std::int64_t first_row = 0;
  std::int64_t sequence_rows = 0;
  std::int64_t sequences = 1;
  // Choices in turn, by the position p of a row's token in its sequence: experts num_choices*p + k,
  // modulo `experts`. The first row of a sequence is of `first_position`; the second half of its
  // rows goes on behind a gap.
  bool chooses_in_turn = false;
  std::int64_t first_position = 0;
  std::int64_t position_gap = 0;
};

// probabilities [rows, experts]       out; may be logits
// choices       [rows, num_choices]   out: the likeliest experts, of equals the lower first; or in
//                                     turn
// weights       [rows, num_choices]   out
// counts        [sequences, experts]  out: choices of the experts by the rows given
// logits        [rows, experts]
void router_forward(float* probabilities, std::int32_t* choices, float* weights, float* counts,
                    const float* logits, const RouterShape& shape, cudaStream_t stream);

// Blocks of the loss's first stage: fixed, so that the result does not depend on the GPU.
inline constexpr std::int64_t kRouterPartials = 1024;

// The auxiliary loss is slope * sum over rows and experts e of counts(sequence, e) * p_e.
// dlogits       [rows, experts]       out; float or __nv_bfloat16
// loss          [1]                   the auxiliary loss is added to it
// partial       [kRouterPartials]     double, scratch
// probabilities [rows, experts]
// choices       [rows, num_choices]
// dweights      [rows, num_choices]
// counts        [sequences, experts]  of whole sequences
template <class T>
void router_backward(T* dlogits, float* loss, double* partial, const float* probabilities,
                     const std::int32_t* choices, const float* dweights, const float* counts,
                     double slope, const RouterShape& shape, cudaStream_t stream);

}  // namespace shardplan
