#include "estimator/frameworks/nanotron/notes.h"

namespace shardplan {

std::vector<std::string> nanotron_not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "gradient clipping's norms",
          "other processes on the GPU"};
}

}  // namespace shardplan
