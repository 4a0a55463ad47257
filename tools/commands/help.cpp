#include "tools/commands/help.h"

#include <array>

#include "data/read/json_message.h"
#include "tools/accuracy/accuracy.h"
#include "tools/commands/advise.h"
#include "tools/commands/batch.h"
#include "tools/commands/command.h"
#include "tools/commands/compare.h"
#include "tools/commands/completion.h"
#include "tools/commands/estimate.h"
#include "tools/commands/explain/explain.h"
#include "tools/commands/external.h"
#include "tools/commands/list.h"
#include "tools/commands/search.h"
#include "tools/commands/why_oom.h"
#include "tools/options/options.h"
#include "tools/report/output.h"
#include "tools/report/text.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

constexpr std::array<Command, 14> kCommands = {{
    {.name = "estimate",
     .arguments = "--model M --cluster C --sequence-length N --global-batch N [options]",
     .summary = "memory and step time of one plan on every GPU",
     .run = run_estimate},
    {.name = "compare",
     .arguments = "--model M --cluster C ... --against KEY=VALUE [options]",
     .summary = "two plans, frameworks or versions of one, term by term",
     .run = run_compare},
    {.name = "search",
     .arguments = "--model M --cluster C --sequence-length N --global-batch N [options]",
     .summary = "every plan of a cluster, the fastest that fit first",
     .run = run_search},
    {.name = "advise",
     .arguments = "--model M --cluster C --sequence-length N --global-batch N [options]",
     .summary = "the smallest changes that make a plan fit or faster; how its bytes grow",
     .run = run_advise},
    {.name = "batch",
     .arguments = "FILE|- [options]",
     .summary = "one answer per case line of a file; exit 2 if a line was bad, after all others",
     .run = run_batch},
    {.name = "accuracy",
     .arguments = "FILE... [options]",
     .summary = "predictions of case lines held against their measurements",
     .run = run_accuracy},
    {.name = "why-oom",
     .arguments = "LOG|- --cluster C [--model M ... | --from FILE | --case FILE] [options]",
     .summary = "which tensor a run died of, and what would have avoided it",
     .run = run_why_oom},
    {.name = "explain",
     .arguments = "[TERM] [options of estimate]",
     .summary = "what a word of the answers means, its formula, and its numbers for a job",
     .run = run_explain},
    {.name = "list",
     .arguments = "models | gpus | clusters | frameworks | options FRAMEWORK",
     .summary = "what is known by name",
     .run = run_list},
    {.name = "validate",
     .arguments = "FILE|- [options]",
     .summary = "run the plans of case lines for a few steps and measure (shardplan-validate)",
     .run = run_validate},
    {.name = "calibrate",
     .arguments = "--memory | --time --gpu ID [--out FILE] [--cluster-out FILE]",
     .summary = "measure what this machine's GPUs hold beside a plan and how fast they are",
     .run = run_calibrate},
    {.name = "completion",
     .arguments = "bash | zsh | fish",
     .summary = "a script that completes commands, options and names in that shell",
     .run = run_completion},
    {.name = "version", .arguments = "", .summary = "the program's version", .run = run_version},
    {.name = "help", .arguments = "[COMMAND]", .summary = "this text", .run = run_help},
}};

constexpr std::string_view kExitCodes =
    R"(Exit codes: 0 ok, 1 negative answer (does not fit, over a memory rule that was asked for, invalid
plan, nothing found), 2 bad input or a plan that nothing describes (unsupported), 3 environment
(a file cannot be written, no memory), 4 a bug of shardplan, 5 a rank that timed out or died, 128 + N
ended by signal N (130 SIGINT, 137 SIGKILL, 143 SIGTERM).
)";

std::string overview() {
  std::string text = "usage: shardplan COMMAND [options]\n\n";
  for (const Command& command : kCommands) {
    text += "  " + padded_right(command.name, 11) + std::string(command.summary) + "\n";
  }
  return text + "\nshardplan help COMMAND lists the options of a command.\n" +
         std::string(kExitCodes);
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

const Command& command_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == name) {
      return command;
    }
    names.push_back(std::string(command.name));
  }
  throw InputError("unknown command '" + name + "'" + suggestion(name, names) +
                   "; see 'shardplan help'");
}

std::string help_text(const Command& command) {
  std::string text = "usage: shardplan " + std::string(command.name) + " " +
                     std::string(command.arguments) + "\n\n" + std::string(command.summary) + "\n";
  std::string group;
  for (const OptionRow* row : options_of(command.name)) {
    if (row->group != group) {
      group = row->group;
      text += "\n" + group + "\n";
    }
    const std::string flag =
        "  --" + row->name + (row->argument.empty() ? "" : " " + row->argument);
    constexpr std::int64_t kHelpColumn = 34;
    const bool is_long = display_width(flag) + 2 > kHelpColumn;
    text +=
        (is_long ? flag + "\n" + std::string(kHelpColumn, ' ') : padded_right(flag, kHelpColumn)) +
        row->help + "\n";
  }
  return text + "\n" + std::string(kExitCodes);
}

ExitCode run_help(const Arguments& arguments) {
  if (arguments.size() > 1) {
    throw InputError("help: expected one command, found " + std::to_string(arguments.size()));
  }
  Output output("");
  output.write(arguments.empty() ? overview() : help_text(command_named(arguments.front())));
  return ExitCode::kOk;
}

ExitCode run_version(const Arguments& arguments) {
  if (!arguments.empty()) {
    throw InputError("version: takes no arguments, found '" + arguments.front() + "'");
  }
  Output output("");
  output.write(std::string(kVersionText) + "\n");
  return ExitCode::kOk;
}

}  // namespace shardplan
