#include "tools/commands/completion.h"

#include <algorithm>
#include <map>
#include <set>

#include "data/read/input_error.h"
#include "data/read/library.h"
#include "tools/commands/help.h"
#include "tools/options/option_table.h"
#include "tools/options/options.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) { text += (text.empty() ? "" : " ") + word; }
  return text;
}

Words command_names() {
  Words names;
  for (const Command& command : commands()) { names.emplace_back(command.name); }
  return names;
}

Words options_of_command(std::string_view command) {
  Words words;
  for (const OptionRow* row : options_of(command)) { words.push_back("--" + row->name); }
  return words;
}

// What a command takes besides options.
Words operands_of(std::string_view command) {
  if (command == "help") {
    return command_names();
  }
  if (command == "list") {
    return {"models", "gpus", "clusters", "frameworks", "options"};
  }
  return command == "completion" ? Words{"bash", "zsh", "fish"} : Words{};
}

// The values of an option, if they are words that are known.
Words values_of(const OptionRow& row, const Library& library) {
  const std::map<std::string, Words> named = {{"model", library.model_names()},
                                              {"gpu", library.gpu_names()},
                                              {"cluster", library.cluster_names()},
                                              {"framework", library.framework_names()}};
  const auto found = named.find(row.name);
  return found == named.end() ? row.choices : found->second;
}

// Rows of one name that belong to several commands offer the values of all.
std::map<std::string, std::set<std::string>> values_by_option(const Library& library) {
  std::map<std::string, std::set<std::string>> values;
  for (const OptionRow& row : option_table()) {
    for (std::string& word : values_of(row, library)) { values[row.name].insert(std::move(word)); }
  }
  return values;
}

// The branches of a `case` over words.
struct Branch {
  std::string pattern;
  std::string words;
};

std::vector<Branch> value_branches(const Library& library) {
  std::vector<Branch> branches;
  for (const auto& [option, values] : values_by_option(library)) {
    branches.push_back({"--" + option, joined(Words(values.begin(), values.end()))});
  }
  return branches;
}

std::vector<Branch> command_branches() {
  std::vector<Branch> branches;
  for (const Command& command : commands()) {
    Words words = operands_of(command.name);
    for (std::string& option : options_of_command(command.name)) {
      words.push_back(std::move(option));
    }
    branches.push_back({std::string(command.name), joined(words)});
  }
  return branches;
}

std::string cases(const std::vector<Branch>& branches, const std::string& line_before,
                  const std::string& line_behind) {
  std::string text;
  for (const auto& [pattern, words] : branches) {
    text += "    " + pattern + ") " + line_before + words + line_behind + " ;;\n";
  }
  return text;
}

std::string bash_script(const Library& library) {
  return "# Completion of shardplan for bash: source <(shardplan completion bash)\n"
         "_shardplan() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=''\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         joined(command_names()) +
         "' -- \"$word\")\n"
         "    return\n"
         "  fi\n"
         "  case $previous in\n" +
         cases(value_branches(library), "words='", "'") +
         "  esac\n"
         "  [ -n \"$words\" ] || case ${COMP_WORDS[1]} in\n" +
         cases(command_branches(), "words='", "'") +
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "}\n"
         "complete -o default -F _shardplan shardplan\n";
}

std::string zsh_script(const Library& library) {
  return "#compdef shardplan\n"
         "# Completion of shardplan for zsh, as _shardplan in a folder of fpath.\n"
         "if (( CURRENT == 2 )); then\n"
         "  compadd -- " +
         joined(command_names()) +
         "\n"
         "  return\n"
         "fi\n"
         "case ${words[CURRENT-1]} in\n" +
         cases(value_branches(library), "compadd -- ", "; return") +
         "esac\n"
         "case ${words[2]} in\n" +
         cases(command_branches(), "compadd -- ", "") +
         "esac\n"
         "_files\n";
}

std::string in_quotes(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string{c};
  }
  return quoted + "'";
}

std::string fish_option(const OptionRow& row, const Library& library) {
  const Words values = values_of(row, library);
  std::string text = "complete -c shardplan -n " +
                     in_quotes("__fish_seen_subcommand_from " + joined(row.commands)) + " -l " +
                     row.name;
  if (row.kind != OptionKind::kSwitch) {
    text += row.is_input || row.is_output ? " -r" : " -x";
  }
  if (!values.empty()) {
    text += " -a " + in_quotes(joined(values));
  }
  return text + " -d " + in_quotes(row.help) + "\n";
}

std::string fish_script(const Library& library) {
  std::string text = "# Completion of shardplan for fish: shardplan completion fish | source\n";
  for (const Command& command : commands()) {
    const std::string name(command.name);
    text += "complete -c shardplan -n __fish_use_subcommand -f -a " + name + " -d " +
            in_quotes(command.summary) + "\n";
    if (const Words operands = operands_of(name); !operands.empty()) {
      text += "complete -c shardplan -n " + in_quotes("__fish_seen_subcommand_from " + name) +
              " -f -a " + in_quotes(joined(operands)) + "\n";
    }
  }
  for (const OptionRow& row : option_table()) { text += fish_option(row, library); }
  return text;
}

std::string script_for(const std::string& shell, const Library& library) {
  if (shell == "bash") {
    return bash_script(library);
  }
  if (shell == "zsh") {
    return zsh_script(library);
  }
  if (shell == "fish") {
    return fish_script(library);
  }
  throw InputError("completion: found '" + shell + "', expected bash, zsh or fish");
}

}  // namespace

ExitCode run_completion(const Arguments& arguments) {
  if (arguments.size() != 1) {
    throw InputError("completion: expected one shell, bash, zsh or fish, found " +
                     std::to_string(arguments.size()) + " words");
  }
  Output output("");
  output.write(script_for(arguments.front(), Library()));
  return ExitCode::kOk;
}

}  // namespace shardplan
