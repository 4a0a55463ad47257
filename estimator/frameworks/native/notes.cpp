#include "estimator/frameworks/native/notes.h"

namespace shardplan::native {

std::vector<std::string> not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "CUDA graphs", "other processes on the GPU"};
}

}  // namespace shardplan::native
