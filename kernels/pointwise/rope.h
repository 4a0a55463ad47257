// Rotary position embedding (Su et al., arXiv 2104.09864) in place on packed rows, with the halves
// of a head rotating against each other as in Llama.
//   (x[j], x[j + d/2]) -> (x[j] cos - x[j + d/2] sin, x[j + d/2] cos + x[j] sin)
//   at the angle position * theta^(-2j / d), d = head_dim
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

enum class RopeDirection { kForward, kInverse };  // kInverse is the backward pass

// Row i of a sequence of `length` rows stands at first_start + i in the lower half of the sequence,
// at second_start + i - length / 2 in the upper half: the two chunks of a zigzag share. A whole
// sequence has second_start = length / 2.
struct RopeRows {
  std::int64_t rows = 0;  // of all sequences together
  std::int64_t length = 0;
  std::int64_t first_start = 0;
  std::int64_t second_start = 0;
};

// table [positions, head_dim / 2]  out: (cos, sin), computed in double precision
void rope_table(float2* table, std::int64_t positions, std::int64_t head_dim, double theta,
                cudaStream_t stream);

// qkv   [rows, row_width]  in place; the first num_heads * head_dim columns rotate
// table [positions, head_dim / 2]
// T is float or __nv_bfloat16. head_dim is a multiple of 16, row_width of 8, length of 2;
// rows * num_heads * head_dim below 2^34; pointers are 16-byte
// aligned.
template <class T>
void rope(T* qkv, const float2* table, const RopeRows& rows, std::int64_t row_width,
          std::int64_t num_heads, std::int64_t head_dim, RopeDirection direction,
          cudaStream_t stream);

}  // namespace shardplan
