// The cluster that the log of a run shows, where no option names one.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"

namespace shardplan {

// The options with what the log says of the GPU and of the number of ranks, as far as they are
// silent: --cluster, --gpu and --num-gpus go before. `notes` receives one line for all that was
// taken, and where it stands. Options stay as they are where the log names no GPU.
// InputError where it names only GPUs that no data describe.
Options with_machine_of_log(Options options, const std::string& log_path, const Library& library,
                            std::vector<std::string>& notes);

}  // namespace shardplan
