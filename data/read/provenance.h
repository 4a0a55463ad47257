// Where a number of data/ comes from, as its entry states it.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

struct Provenance {
  Origin origin = Origin::kCounted;
  std::string source;
};

// Reads the members "origin" and "source".
Provenance read_provenance(ObjectReader& reader);

}  // namespace shardplan
