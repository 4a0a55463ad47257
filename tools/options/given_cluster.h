// The cluster that the options name, with as many GPUs as they or the run's file say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"

namespace shardplan {

// The name of --cluster, or of a usual node of --gpu. InputError if neither or both are given.
std::string cluster_word(const Options& options, const Library& library);

// The cluster, with as many GPUs as the options or else the run's launcher say.
ClusterSpec cluster_of(const Options& options, const Library& library, std::int64_t of_launcher,
                       std::vector<std::string>& warnings);

}  // namespace shardplan
