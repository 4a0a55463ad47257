// Names of torchtitan's settings: those of earlier releases, and those that no release has.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// The settings by the names of today; a note says which had others.
std::vector<Setting> with_names_of_today(const RunSettings& settings, const ArgumentTable& table,
                                         std::vector<std::string>& notes);

// InputError that lists what `table` does not have, and for settings none of which is in a section
// of torchtitan's.
void refuse_unknown_names(const std::string& file, const RunArguments& arguments,
                          const ArgumentTable& table);

}  // namespace shardplan
