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

TapeTensor Tape::make_typed(std::int64_t bytes, DType dtype, AllocationStream stream) {
  const TapeTensor tensor = make(bytes, stream);
  dtypes_.resize(static_cast<std::size_t>(last_id()) + 1, DType::kBool);
  dtypes_.back() = dtype;
  return tensor;
}

std::vector<DType> Tape::take_dtypes() {
  dtypes_.resize(static_cast<std::size_t>(last_id()) + 1, DType::kBool);
  return std::move(dtypes_);
}

}  // namespace shardplan::eager
