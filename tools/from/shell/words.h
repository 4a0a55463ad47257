// The commands that a shell script runs, with its variables put in: what a launch script for
// training says without being run. Conditions, loops, functions and scripts within scripts are
// followed as a shell would; programs are not started, so what depends on their output, on files or
// on variables that the script does not set is a choice: taken one way, and reported.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace shardplan {

struct ShellCommand {
  std::vector<std::string> launcher;  // in front of a script in a word: srun -N 4 bash -c '...'
  std::vector<std::string> words;     // without assignments
  std::string place;                  // "run.sh:12"
  std::int64_t line = 1;              // where it begins
  std::map<std::string, std::string> environment;  // what is exported when it starts
};

// One value, or a list. What no value is known of stands in it between marks: see plain().
using ShellValues = std::map<std::string, std::vector<std::string>>;

// A condition or a `case` that the script alone does not decide.
struct ShellChoice {
  std::string key;    // of ShellGiven::choices
  std::string place;  // "run.sh:12"
  std::string text;   // as it stands in the script
  // Variables that nothing sets, taken as empty. None: it depends on a program, a file, the
  // machine.
  std::set<std::string> missing;
  int taken = 0;         // 0: no or no branch, else yes or the branch's number
  int alternatives = 2;  // values of `taken`
};

struct ShellScript {
  std::vector<ShellCommand> commands;
  ShellValues variables;                            // in the end, plain
  std::map<std::string, std::string> exported;      // environment, in the end
  std::map<std::string, std::int64_t> export_line;  // where each was set
  std::vector<std::string> comments;                // lines that begin with #SBATCH
  std::vector<ShellChoice> choices;                 // in order, each once
  std::set<std::string> mentioned;                  // names of variables that are read or set
  std::vector<std::string> unread;                  // "run.sh:3: source config.sh"
  std::string exits_at;                             // "run.sh:8": where it ends by exit
  std::size_t steps = 0;                            // what it cost to follow it
};

// What is known beside the script.
struct ShellGiven {
  std::map<std::string, std::string> values;  // variables, "1" the first argument; kept as they are
  std::map<std::string, int> choices;         // ShellChoice::key -> taken
  // Another script by the path that this one names, or nothing.
  std::function<std::optional<std::string>(const std::string& path)> read_file = {};
};

bool is_shell_name(const std::string& word);  // of a variable

}  // namespace shardplan
