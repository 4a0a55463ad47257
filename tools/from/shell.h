// The settings of the training that a launch script starts.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"
#include "tools/from/file.h"

namespace shardplan {

// InputError where the script starts no training or several different ones, and where a setting
// that `library` says matters depends on what the script does not decide.
RunSettings settings_from_shell(const std::string& text, const std::string& file,
                                std::vector<std::string>& notes, const ScriptRequest& request = {},
                                const Library& library = Library());

}  // namespace shardplan
