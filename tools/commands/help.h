// shardplan help and version; the command table.
#pragma once

#include <span>
#include <string>

#include "tools/commands/command.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::span<const Command> commands();

// InputError with a did-you-mean for names that no row has.
const Command& command_named(const std::string& name);

ExitCode run_version(const Arguments& arguments);
ExitCode run_help(const Arguments& arguments);

// What `shardplan help COMMAND` prints: its options by what they are of.
std::string help_text(const Command& command, const Screen& screen = {});

}  // namespace shardplan
