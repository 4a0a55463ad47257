// shardplan help and version; the command table.
#pragma once

#include <span>
#include <string>

#include "tools/commands/command.h"

namespace shardplan {

std::span<const Command> commands();

// InputError with a did-you-mean for names that no row has.
const Command& command_named(const std::string& name);

ExitCode run_version(const Arguments& arguments);
ExitCode run_help(const Arguments& arguments);

// What `shardplan help COMMAND` prints.
std::string help_text(const Command& command);

}  // namespace shardplan
