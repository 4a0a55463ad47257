// GPUs that tests make by hand, whose kernels and links take what the library's file says.
#pragma once

#include <memory>

#include "data/read/library.h"
#include "estimator/plan/time_constants.h"

namespace shardplan {

inline const std::shared_ptr<const TimeConstants>& library_constants() {
  static const Library library;
  return library.time_constants();
}

}  // namespace shardplan
