// Follows a shell script command by command: read_shell's inside.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/shell_condition.h"
#include "tools/shell_word_reader.h"

namespace shardplan {

// What all scripts within a script share.
struct ShellState {
  enum class Flow { kOn, kBreak, kContinue, kReturn, kExit };
  struct Function {
    std::string text;  // its body, with the braces
    std::string file;
    std::int64_t line = 1;
  };
  using Scope = std::map<std::string, std::optional<std::vector<std::string>>>;  // values outside

  const ShellGiven& given;
  ShellWordContext context = {};
  std::set<std::string> arrays = {};
  std::set<std::string> exported = {};
  std::map<std::string, Function> functions = {};
  std::map<std::string, std::string> written = {};  // files that `cat <<EOF > file` makes
  std::vector<Scope> scopes = {};                   // of the functions that are being called
  ShellScript script = {};
  Flow flow = Flow::kOn;
  std::string* output = nullptr;  // of the $(...) that is being read
  bool output_known = true;
  int depth = 0;          // scripts within each other
  std::size_t turns = 0;  // commands so far
};

class ShellInterpreter {
 public:
  // `launcher`: words in front of a script that is a word itself. Throws InputError for scripts
  // that stand too deep within each other.
  ShellInterpreter(ShellState& state, std::string text, std::string file, std::int64_t first_line,
                   std::vector<std::string> launcher);
  ~ShellInterpreter() { --state_.depth; }
  ShellInterpreter(const ShellInterpreter&) = delete;
  ShellInterpreter& operator=(const ShellInterpreter&) = delete;

  void whole();
  // $(...) of the words that are read next is this interpreter's.
  void install();

 private:
  using Words = ShellWordReader::Words;
  using Flow = ShellState::Flow;

  struct Status {
    Truth truth = Truth::kTrue;
    std::set<std::string> missing = {};
    bool is_program = false;  // its success is not known
  };
  // A simple command, read and not yet run.
  struct Simple {
    Words words;
    std::map<std::string, std::optional<std::vector<std::string>>> before;  // NAME=value in front
    std::optional<std::string> here;                                        // <<EOF
    std::string target;                                                     // > file
    std::int64_t line = 1;
  };

  // Reads what is not run: functions when they are defined, branches that are not taken.
  struct Dead {
    Dead(ShellInterpreter& of, bool is_dead) : interpreter(of), dead(is_dead) {
      interpreter.dead_ += dead ? 1 : 0;
    }
    ~Dead() { interpreter.dead_ -= dead ? 1 : 0; }
    Dead(const Dead&) = delete;
    Dead& operator=(const Dead&) = delete;
    ShellInterpreter& interpreter;
    bool dead;
  };

  bool live() const { return dead_ == 0 && state_.flow == Flow::kOn; }
  std::string place(std::int64_t line) const { return in_.file + ":" + std::to_string(line); }
  std::string peek() const;
  bool take(const std::string& keyword);
  void expect(const std::string& keyword, const std::string& opening, std::int64_t first_line);
  void skip_blanks();
  void skip_separators();

  // shell_interpreter.cpp: what commands are made of
  Status list(const std::vector<std::string>& stops);
  Status and_or();
  Status pipeline();
  Status command();
  bool function();
  std::string source(std::size_t begin) const;

  // shell_compound.cpp: commands that are made of commands
  Status if_command();
  Status while_command();
  Status for_command();
  Status case_command();
  Status condition();
  Status arithmetic();
  Status subshell();
  void turn(const std::vector<std::string>& stops);
  bool ends_loop();
  bool decide(const Status& status, std::int64_t line, const std::string& text);
  int choose(ShellChoice choice);

  // shell_assignment.cpp: variables
  bool assignment(Simple& simple);
  void array(const std::string& name, Words& value);
  void store(const std::string& name, Words value, bool appends, bool is_array);
  void declare(const Words& words);
  void set_arguments(const Words& words);
  void restore(const std::map<std::string, std::optional<std::vector<std::string>>>& before);
  void redirection(Simple& simple, std::size_t& here_end);

  // shell_commands.cpp: one command
  Status simple();
  Status run(Simple simple);
  std::optional<Status> built_in(const Simple& simple);
  std::optional<Status> control(const Words& words);
  void print(const Simple& simple);
  std::optional<std::string> substitute(const std::string& text);
  std::string program_output(const Words& words, bool& known);
  void record(const Simple& simple);

  // shell_inner.cpp: scripts within it
  bool inner_script(const Simple& simple);
  bool script_file(const Words& words, std::size_t at);
  void nested(const std::string& text, const std::string& file, std::int64_t line,
              const Words& launcher);
  void call(const ShellState::Function& function, const Words& words);

  ShellState& state_;
  ShellWordReader in_;
  Words launcher_;
  int dead_ = 0;
};

std::string shell_program(const std::string& word);  // "/bin/bash" -> "bash"
bool starts_nothing(const std::string& word);        // such as echo, whatever its arguments say

}  // namespace shardplan
