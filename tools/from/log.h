// The log of a run: the arguments or the configuration that its framework prints when it starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/text_file.h"

namespace shardplan {

// Nothing where the log does not print them.
std::optional<RunSettings> settings_from_log(TextFile& log, std::vector<std::string>& notes,
                                             const Library& library);

}  // namespace shardplan
