// Where a number of data/ comes from, as its entry states it.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "data/read/json_reader.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

struct Provenance {
  Origin origin = Origin::kCounted;
  std::string source;
};

// By the number's name, where a folder has several tables "host/layer".
using Provenances = std::map<std::string, Provenance, std::less<>>;

// Reads the members "origin" and "source".
Provenance read_provenance(ObjectReader& reader);

}  // namespace shardplan
