// One attention of a program, prepared once and run many times: by cuDNN where it was found and
// takes the shape, by our own kernels (attention.h) everywhere else. What was chosen can be asked.
// cuDNN is loaded at run time: a program that was built with it runs without it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/attention/attention.h"

namespace shardplan {

class CudnnAttention;
class CudnnGraph;

enum class AttentionKernels {
  kFastest,  // cuDNN's where there are some
  kOwn,
};

// cuDNN's handle and its graphs by shape; one for each thread that launches, made with the device
// current that it launches on.
class AttentionLibrary {
 public:
  // why_own: the reason that own kernels give for themselves where they are asked for.
  explicit AttentionLibrary(AttentionKernels kernels = AttentionKernels::kFastest,
                            std::string why_own = "asked for");
  ~AttentionLibrary();
  AttentionLibrary(const AttentionLibrary&) = delete;
  AttentionLibrary& operator=(const AttentionLibrary&) = delete;

  // "cuDNN 9.19.0", or "own kernels: " and why.
  const std::string& description() const { return description_; }
  bool has_cudnn() const { return cudnn_ != nullptr; }

 private:
  friend class AttentionForward;
  friend class AttentionBackward;
  std::unique_ptr<CudnnAttention> cudnn_;
  std::string why_own_;  // empty where there is cuDNN
  std::string description_;
};

enum class AttentionTypes {
  kFloat,               // everything float: own kernels
  kBf16,                // gradients too
  kBf16FloatGradients,  // own kernels
};

class AttentionForward {
 public:
  AttentionForward(const AttentionLibrary& library, AttentionTypes types,
                   const AttentionShape& shape);

  // Why the own kernel is used: what cuDNN lacks. Empty where cuDNN is used.
  const std::string& own_because() const { return own_because_; }
  // Of the scratch of run(), aligned to 256 bytes, not shared by calls that may overlap.
  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  // Pointers as attention_forward() takes them; workspace may be null where it has 0 bytes.
  void run(void* o, float* lse, const void* q, const void* k, const void* v, void* workspace,
           cudaStream_t stream) const;

 private:
  AttentionTypes types_;
  AttentionShape shape_;
  std::shared_ptr<CudnnGraph> graph_;
  std::string own_because_;
  std::int64_t workspace_bytes_ = 0;
};

enum class AttentionOrder {
  kAny,         // sums of dq in the order in which blocks finish: two runs may differ
  kRepeatable,  // own kernels, which always are, where they run on warpgroups; elsewhere cuDNN's,
                // which needs a workspace quadratic in the length for it
};

// Calls that add to gradients of keys and values are our own where kernels run on
// warpgroups. cuDNN 9.19 writes them aside, and goes over all keys where queries stand behind the
// first of them, also over those that the mask or a window hides: 8192 queries on 32768 keys take
// 21.4 ms on an H200 and 19.8 by our own kernels, with a window of 4096 21.5 and 3.2
// (data/measured/kernels_h200.txt).
class AttentionBackward {
 public:
  // gradients.dq_sum must be kOverwrite.
  AttentionBackward(const AttentionLibrary& library, AttentionTypes types,
                    const AttentionShape& shape, const AttentionGradientShape& gradients,
                    AttentionOrder order);

  const std::string& own_because() const { return own_because_; }
  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  // Pointers as attention_backward() takes them, without delta, which is part of the workspace.
  void run(void* dq, void* dk, void* dv, const void* dout, const void* q, const void* k,
           const void* v, const void* o, const float* lse, void* workspace,
           cudaStream_t stream) const;

 private:
  template <class T, class G>
  void run_own(void* dq, void* dk, void* dv, const void* dout, const void* q, const void* k,
               const void* v, const void* o, const float* lse, void* workspace,
               cudaStream_t stream) const;

  AttentionTypes types_;
  AttentionShape shape_;
  AttentionGradientShape gradients_;
  std::shared_ptr<CudnnGraph> graph_;
  std::string own_because_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace shardplan
