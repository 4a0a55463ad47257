#include "estimator/frameworks/pieces/eager/tape.h"

namespace shardplan::eager {

const Label* Tape::enter(const Label* label) {
  const Label* outer = labels_.empty() ? label : labels_.back().label;
  if (!labels_.empty() && labels_.back().after_id == last_id()) {
    labels_.back().label = label;
  } else {
    labels_.push_back({.after_id = last_id(), .label = label});
  }
  return outer;
}

}  // namespace shardplan::eager
