// The cuDNN half of call.h, which alone calls it: scaled dot-product attention in bf16 as
// graphs of cuDNN's C++ frontend. cudnn.cpp has it, cudnn_absent.cpp stands in
// where the build found no frontend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"

namespace shardplan {

// A graph with its execution plan, for one shape.
class CudnnGraph {
 public:
  virtual ~CudnnGraph() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  virtual void forward(void* o, float* lse, const void* q, const void* k, const void* v,
                       void* workspace, cudaStream_t stream) const = 0;
  virtual void backward(void* dq, void* dk, void* dv, const void* dout, const void* q,
                        const void* k, const void* v, const void* o, const float* lse,
                        void* workspace, cudaStream_t stream) const = 0;
};

// What a shape became: a graph, or why there is none.
struct CudnnAnswer {
  std::shared_ptr<CudnnGraph> graph;
  std::string why_not;
};

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  virtual std::string version() const = 0;  // "9.19.0"
  // Of equal shapes the same graph. dkv_sum of kAccumulate is added up behind cuDNN, which only
  // overwrites.
  virtual CudnnAnswer forward(const AttentionShape& shape) = 0;
  virtual CudnnAnswer backward(const AttentionShape& shape, const AttentionGradientShape& gradients,
                               bool repeatable) = 0;
};

// Null where there is no cuDNN 9; why_not says then what is missing.
std::unique_ptr<CudnnAttention> open_cudnn(std::string& why_not);

// What the causal mask of a shape is in cuDNN's words.
enum class CudnnMask {
  kNone,         // every query sees every key
  kTopLeft,      // query i sees keys up to i
  kBottomRight,  // the last query sees all keys
  kOther,        // none of these: not for cuDNN
};
CudnnMask mask_of(const AttentionShape& shape);
// Keys that a query sees at most; 0 where the window hides none that the mask does not.
std::int64_t window_of(const AttentionShape& shape);

}  // namespace shardplan
