// `shardplan completion bash|zsh|fish`: a script that completes commands, options and their values.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_completion(const Arguments& arguments);

}  // namespace shardplan
