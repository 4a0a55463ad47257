// accelerate's launcher: its configuration and the words of `accelerate launch`, as settings of the
// framework that shards.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// `launcher`: words of a command up to its program. What of them are settings, under the names that
// accelerate's file has for them: --use_fsdp, --fsdp_version 2, --zero_stage 3.
std::vector<Setting> settings_of_launcher(const std::vector<std::string>& launcher,
                                          const std::string& place);

// --accelerate_config zero2: the configurations that TRL ships (trl/accelerate_configs). Empty
// where it has none of that name.
std::vector<Setting> shipped_configuration(const std::string& name, const std::string& place);

// `own`: as accelerate's file has them. Those of DeepSpeed by its own names, those of FSDP as
// fsdp_config.*, all others behind "accelerate.".
RunSettings settings_of_accelerate(const std::vector<Setting>& own, const std::string& file,
                                   const std::string& path);

}  // namespace shardplan
