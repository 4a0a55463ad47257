// The words that name GPUs and clusters, and what to say of those that name none.
#pragma once

#include <string>

#include "data/read/input_error.h"
#include "data/read/library.h"

namespace shardplan {

// `opening` opens the message.
InputError unknown_gpu(const std::string& found, const std::string& opening,
                       const Library& library);
InputError unknown_cluster(const std::string& found, const std::string& opening,
                           const Library& library);

}  // namespace shardplan
