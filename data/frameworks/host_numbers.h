// The seconds that hosts take to launch kernels, as a profile's file states them.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "data/read/provenance.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

// Reads "host", of layers that run eagerly, and "compiled_host": every number that the profile's
// framework adds up, no other. A version states those in which it differs from the profile.
void read_host_numbers(ObjectReader& reader, const std::string& file, FrameworkProfile& profile,
                       Provenances& provenances);

}  // namespace shardplan
