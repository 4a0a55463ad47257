// Bytes of the memory-bound kernels that a framework runs around products and attention: one row
// table for each. Counted from the framework's source, kernel by kernel; what kernels reach of the
// copy rate depends on how they read.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/efficiency.h"

namespace shardplan {

// By how well a kernel uses the memory: own kernels and fused ones of libraries; PyTorch's
// vectorized ones; those that broadcast, or read one type and write another; those that pick
// their elements from views that are not contiguous.
struct KernelBytes {
  double fused = 0;
  double streamed = 0;
  double converted = 0;
  double rearranged = 0;
};
KernelBytes operator+(const KernelBytes& a, const KernelBytes& b);
KernelBytes operator*(double count, const KernelBytes& bytes);
// Of a kernel that reaches this share of a copy's rate.
KernelBytes at_share(double bytes, const EfficiencyConstant& share);
double elementwise_s(const GpuSpec& gpu, const KernelBytes& bytes);

struct Passes {
  KernelBytes forward = {};
  KernelBytes backward = {};
};

// Bytes of a profile's kernels, by what they are multiplied with.
struct LayerKernels {
  Passes norm = {};    // one norm with its residual addition, per element of the hidden state
  Passes rotary = {};  // with norms of heads, per element of queries and keys
  Passes copies = {};  // around attention, per element of queries
  Passes gated = {};   // SwiGLU, per element of one half of its input
  Passes plain = {};   // an activation without a gate
  // What probabilities add to an expert's SwiGLU, per element of one half of its input.
  Passes weighted = {};
  // Attention among these kernels leaves products a higher clock than where it was measured
  // (kLightCycle).
  bool light_attention = false;
};
LayerKernels layer_kernels(const Job& job, const Plan& plan);

// The loss, per logit of this rank.
Passes loss_kernels(const Job& job);

// Liger's loss, per element of the head's weight: its gradient is filled with zeros and, of several
// microbatches, multiplied by the loss's (ops/fused_linear_cross_entropy.py). The product of every
// chunk reads what it adds to; up to 0.8.2 it becomes fp32 and is added.
KernelBytes liger_head_kernels(const Job& job, const Plan& plan);

// nanotron's in two, which may lie on different stages: the cast of logits to fp32, and the loss of
// what it gives.
Passes cast_kernels();
Passes loss_of_cast_kernels();

// Backward of the embedding, per element of the hidden state and of the table on this rank.
struct TableGradientKernels {
  KernelBytes token = {};
  KernelBytes table = {};
};
TableGradientKernels table_gradient_kernels(const Job& job, const Plan& plan);

// Experts' rows on both sides of their exchange, per byte of a row.
Passes permutation_kernels(const Job& job, const Plan& plan);

// DeepSpeed's bucket, per gradient: copied in, divided by the number of ranks, copied flat
// (stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads, average_tensor,
// allreduce_bucket). ZeRO-1 does so once a step.
KernelBytes deepspeed_bucket_kernels(double element_bytes);

// What it costs, per element, that a product does not add to the main gradient itself.
KernelBytes weight_gradient_kernels(const Job& job, const Plan& plan);

// Microbatches whose gradients torchtitan adds up: all of a step, or 1 under FSDP without a
// pipeline, where every one is reduced.
std::int64_t accumulated_microbatches(const Job& job, const Plan& plan);

}  // namespace shardplan
