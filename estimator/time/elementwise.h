// Bytes of the memory-bound kernels that a framework runs around products and attention. Counted
// from the framework's source, kernel by kernel; what kernels reach of the copy rate depends on how
// they read.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/plan/time_constants.h"

namespace shardplan {

// By how well a kernel uses the memory: own kernels and fused ones of libraries; PyTorch's
// vectorized ones; those that broadcast, or read one type and write another; those that pick their
// elements from views that are not contiguous.
struct KernelBytes {
  double fused = 0;
  double streamed = 0;
  double converted = 0;
  double rearranged = 0;
};
KernelBytes operator+(const KernelBytes& a, const KernelBytes& b);
KernelBytes operator*(double count, const KernelBytes& bytes);
// Of a kernel that reaches this share of a copy's rate.
KernelBytes at_share(const GpuSpec& gpu, double bytes, double TimeConstants::*share);
double elementwise_s(const GpuSpec& gpu, const KernelBytes& bytes);

struct Passes {
  KernelBytes forward = {};
  KernelBytes backward = {};
};
Passes operator+(const Passes& a, const Passes& b);

// Bytes of a framework's kernels, by what they are multiplied with.
struct LayerKernels {
  Passes norm = {};    // one norm with its residual addition, per element of the hidden state
  Passes rotary = {};  // with norms of heads, per element of queries and keys
  Passes copies = {};  // around attention, per element of queries
  Passes gated = {};   // SwiGLU, per element of one half of its input
  Passes plain = {};   // an activation without a gate
  // What probabilities add to an expert's SwiGLU, per element of one half of its input.
  Passes weighted = {};
  // Attention among these kernels leaves products a higher clock than where it was measured
  // (TimeConstants::light_cycle).
  bool light_attention = false;
};

// Backward of the embedding, per element of the hidden state and of the table on this rank.
struct TableGradientKernels {
  KernelBytes token = {};
  KernelBytes table = {};
};

// Bytes of an element of activations, and of one of the main gradient.
double activation_element_bytes(const Plan& plan);
double gradient_element_bytes(const Plan& plan);

}  // namespace shardplan
