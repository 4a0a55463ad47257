#include "estimator/frameworks/native/notes.h"

namespace shardplan {

std::vector<std::string> native_not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "CUDA graphs", "other processes on the GPU"};
}

}  // namespace shardplan
