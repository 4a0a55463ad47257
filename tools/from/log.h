// The log of a run: the arguments or the configuration that its framework prints when it starts,
// else the command that starts it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/text_file.h"
#include "tools/from/file.h"

namespace shardplan {

// Nothing where the log prints none of them. `request`: what a command leaves open, and beside
// which file others are looked for.
std::optional<RunSettings> settings_from_log(TextFile& log, std::vector<std::string>& notes,
                                             const Library& library,
                                             const ScriptRequest& request = {});

}  // namespace shardplan
