#include "estimator/frameworks/nanotron/notes.h"

namespace shardplan::nanotron {

std::vector<std::string> not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "gradient clipping's norms",
          "other processes on the GPU"};
}

}  // namespace shardplan::nanotron
