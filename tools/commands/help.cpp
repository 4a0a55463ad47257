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
#include "tools/commands/support.h"
#include "tools/commands/why_oom.h"
#include "tools/options/options.h"
#include "tools/report/output.h"
#include "tools/report/text.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

constexpr std::array<Command, 15> kCommands = {{
    {.name = "estimate",
     .arguments = "MODEL --cluster C --sequence-length N --global-batch N [options]",
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
     .summary = "the smallest changes that make a plan fit, or faster",
     .run = run_advise},
    {.name = "batch",
     .arguments = "FILE|- [options]",
     .summary = "one answer for each case line of a file",
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
     .summary = "what a word of the answers means, its formula, its numbers",
     .run = run_explain},
    {.name = "list",
     .arguments = "models | gpus | clusters | frameworks | options FRAMEWORK",
     .summary = "what is known by name",
     .run = run_list},
    {.name = "support",
     .arguments = "[--framework NAME] [options]",
     .summary = "what of which framework is counted, measured or refused",
     .run = run_support},
    {.name = "validate",
     .arguments = "FILE|- [options]",
     .summary = "run the plans of case lines for a few steps and measure",
     .run = run_validate},
    {.name = "calibrate",
     .arguments = "--memory | --time --gpu ID [--out FILE] [--cluster-out FILE]",
     .summary = "measure what this machine's GPUs hold and how fast they are",
     .run = run_calibrate},
    {.name = "completion",
     .arguments = "bash | zsh | fish",
     .summary = "a script that completes commands, options and names in that shell",
     .run = run_completion},
    {.name = "version", .arguments = "", .summary = "the program's version", .run = run_version},
    {.name = "help", .arguments = "[COMMAND]", .summary = "this text", .run = run_help},
}};

constexpr std::string_view kExitCodes =
    "Exit codes: 0 ok, 1 negative answer (does not fit, over a memory rule that was asked for, "
    "invalid plan, nothing found), 2 bad input or a plan that nothing describes (unsupported), 3 "
    "environment (a file cannot be written, no memory), 4 a bug of shardplan, 5 a rank that timed "
    "out or died, 128 + N ended by signal N (130 SIGINT, 137 SIGKILL, 143 SIGTERM).\n";

constexpr std::string_view kFirstAnswer =
    "  shardplan estimate llama3-8b --cluster 1x8-h100 --sequence-length 8k --global-batch 64\n";

std::string overview() {
  std::string text =
      "usage: shardplan COMMAND [options]\n\nA first answer:\n" + std::string(kFirstAnswer) + "\n";
  for (const Command& command : kCommands) {
    text += "  " + padded_right(command.name, 11) + std::string(command.summary) + "\n";
  }
  return text +
         "\n'shardplan COMMAND --help' lists options, 'shardplan list models' and its like the "
         "names.\n"
         "Exit codes: 0 ok, 1 a negative answer, 2 bad input; all: README.md.\n";
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

std::string help_text(const Command& command, const Screen& screen) {
  constexpr std::int64_t kHelpColumn = 30;
  constexpr std::size_t kMostArgument = 30;
  std::string text = "usage: shardplan " + std::string(command.name) + " " +
                     std::string(command.arguments) + "\n\n" + std::string(command.summary) + "\n";
  std::string group;
  for (const OptionRow* row : options_of(command.name)) {
    if (row->group != group) {
      group = row->group;
      text += "\n" + group + "\n";
    }
    std::string flag = "  --" + row->name;
    std::string help = row->help;
    const bool is_list = row->argument.size() > kMostArgument;  // of choices
    if (is_list) {
      flag += " WORD";
      help += ": " + joined(row->choices);
    } else if (!row->argument.empty()) {
      flag += " " + row->argument;
    }
    if (display_width(flag) + 2 > kHelpColumn) {
      text += flag + "\n";
      flag.clear();
    }
    text += screen_line(screen, padded_right(flag, kHelpColumn - 1), help);
  }
  return text + "\n" + rewrapped(screen, std::string(kExitCodes), kMostRows);
}

ExitCode run_help(const Arguments& arguments) {
  if (arguments.size() > 1) {
    throw InputError("help: expected one command, found " + std::to_string(arguments.size()));
  }
  Output output("");
  output.write(arguments.empty()
                   ? overview()
                   : help_text(command_named(arguments.front()), screen_for({}, output)));
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
