#include "kernels/attention/cudnn.h"

namespace shardplan {

std::unique_ptr<CudnnAttention> open_cudnn(std::string& why_not) {
  why_not =
      "built without cuDNN's C++ frontend (pip install nvidia-cudnn-frontend, then configure)";
  return nullptr;
}

}  // namespace shardplan
