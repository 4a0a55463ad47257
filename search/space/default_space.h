// The values that a practitioner would try on every axis, and all that a profile knows.
#pragma once

#include "estimator/plan/job.h"
#include "search/space/search_space.h"

namespace shardplan {

// The values of the axes that are searched by default, for this job under its profile.
SearchSpace default_space(const Job& job);

// Every axis open: also the dtypes, fp8, rank orders, offload, sharding and recomputation that the
// profile models and that default_space leaves at one value. A superset of default_space.
SearchSpace wide_space(const Job& job);

}  // namespace shardplan
