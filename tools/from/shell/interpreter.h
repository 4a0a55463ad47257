// Follows a shell script command by command: read_shell's inside.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/from/shell/condition.h"
#include "tools/from/shell/word_reader.h"

namespace shardplan {

// What all scripts within a script share.
struct ShellState {
  enum class Flow { kOn, kBreak, kContinue, kReturn, kExit };
  struct Status {
    Truth truth = Truth::kTrue;
    std::set<std::string> missing = {};
    Truth expected = Truth::kFalse;  // what is taken where the truth is not known
    bool is_program = false;         // its success is not known, and is expected
    std::string number = {};         // $?, where the truth does not say it
  };
  struct Function {    // or a script within another
    std::string text;  // its body, with the braces
    std::string file;
    std::int64_t line = 1;
  };
  using Scope = std::map<std::string, std::optional<std::vector<std::string>>>;  // values outside

  const ShellGiven& given;
  ShellWordContext context = {};
  std::set<std::string> arrays = {};
  std::set<std::string> integers = {};  // declare -i
  std::set<std::string> assigned = {};  // in the loop that is being run
  std::set<std::string> exported = {};
  bool exports_all = false;  // set -a
  std::map<std::string, Function> functions = {};
  std::map<std::string, std::string> written = {};  // files that `cat <<EOF > file` makes
  std::vector<Scope> scopes = {};                   // of the functions that are being called
  ShellScript script = {};
  Flow flow = Flow::kOn;
  Status last = {};                        // of the last command
  std::optional<Status> substituted = {};  // of the last $(...) of a command
  std::optional<std::string> input = {};   // what commands read, where it is known
  std::string* output = nullptr;           // of the $(...) that is being read
  bool output_known = true;
  std::size_t option_letter = 1;  // the next of getopts in the word at $OPTIND
  int depth = 0;                  // scripts within each other
  int commands_deep = 0;          // commands within each other
  std::size_t turns = 0;          // commands so far
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
  using Status = ShellState::Status;

  // A simple command, read and not yet run.
  struct Simple {
    Words words;
    ShellState::Scope before;             // values outside of NAME=value in front
    ShellState::Scope own;                // and theirs, while the words are read
    std::set<std::string> assigned = {};  // in the loop, before this command
    std::optional<std::string> here;      // <<EOF, <<< word
    bool reads = false;                   // < file, <<EOF
    std::string target;                   // > file
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

  // A process of its own: what it sets is gone behind it, and its exit is its own.
  struct Apart {
    explicit Apart(ShellInterpreter& of);
    ~Apart();
    Apart(const Apart&) = delete;
    Apart& operator=(const Apart&) = delete;
    ShellState& state;
    ShellValues values;
    std::set<std::string> arrays;
    std::set<std::string> integers;
    std::set<std::string> assigned;
    std::set<std::string> exported;
    std::string exits_at;
  };

  bool live() const { return dead_ == 0 && state_.flow == Flow::kOn; }
  std::string place(std::int64_t line) const { return in_.file + ":" + std::to_string(line); }
  std::string peek() const;
  bool take(const std::string& keyword);
  void expect(const std::string& keyword, const std::string& opening, std::int64_t first_line);
  void skip_blanks();
  void skip_separators();

  // interpreter.cpp: what commands are made of
  Status list(const std::vector<std::string>& stops);
  Status and_or();
  Status pipeline();
  Status part_of_pipeline(bool is_last);
  template <class Read>
  bool is_followed(char letter, Read read);
  Status command();
  Status compound(const std::string& word);
  bool function();
  std::string source(std::size_t begin) const;
  void finished(const Status& status);
  Simple redirections();

  // compound.cpp: commands that are made of commands
  Status if_command();
  Status case_command();
  bool matches_one(KnownWord& subject);
  Status condition();
  std::string number(const std::string& word);
  Status tested(std::vector<std::string> words);
  Status arithmetic();
  Status calculated(const std::string& text, std::int64_t line);
  Status subshell();
  bool decide(const Status& status, std::int64_t line, const std::string& text);
  int choose(ShellChoice choice);

  // loop.cpp: loops
  Status while_command();
  Status for_command();
  Status counting_loop();
  void repeat(const std::string& keyword, const std::function<Status()>& condition);
  void turn(const std::vector<std::string>& stops);
  bool ends_loop();
  Simple loop_redirections();
  void forget_changes(const ShellValues& before);
  ShellValues copied_values();

  // assignment.cpp: variables
  bool assignment(Simple& simple);
  std::string assigned_name();
  void array(Words& value, std::map<std::size_t, std::string>& keys);
  void store(const std::string& name, Words value, bool appends, bool is_array);
  void store_entry(const std::string& name, const std::string& index, const std::string& value,
                   bool appends);
  void store_array(const std::string& name, const Words& value,
                   const std::map<std::size_t, std::string>& keys, bool appends);
  void declare(const Words& words);
  bool make_local(const std::string& name);
  void set_unknown(const std::string& name);
  void unset(const std::string& name);
  std::optional<Words> value_of(const std::string& name) const;
  void set_aside(Simple& simple);
  void restore(const ShellState::Scope& before);
  void redirection(Simple& simple, std::size_t& here_end);

  // arguments.cpp: $1, $2, ... and the script's options
  void set_arguments(const std::optional<Words>& words);
  void set_options(const Words& words);
  Status shift(const Words& words);
  Status getopts(const Words& words);
  Status next_option(const Words& words, const Words& arguments);

  // commands.cpp: one command
  Status simple();
  Status run(Simple simple);
  Status program(const Simple& simple);
  std::optional<Status> built_in(const Simple& simple);
  std::optional<Status> control(const Words& words);
  void record(const Simple& simple);

  // program_output.cpp: what programs write
  void print(const Simple& simple);
  std::optional<std::string> substitute(const std::string& text);
  std::string host_names(const Words& words, bool& known) const;
  std::string program_output(const Words& words, bool& known);
  std::optional<std::string> cut(const Words& words) const;

  // read.cpp: variables that commands read
  std::optional<Status> reading(const Simple& simple);
  Status read(const Simple& simple);
  void read_lines(const Simple& simple);

  // inner.cpp: scripts within it
  bool inner_script(const Simple& simple);
  bool script_file(const Simple& simple, std::size_t at);
  void child(const Simple& simple, std::size_t num_launcher, const ShellState::Function& script,
             const std::optional<Words>& arguments);
  void pass_variables(const std::string& word);
  void nested(const std::string& text, const std::string& file, std::int64_t line,
              const Words& launcher);
  void call(const ShellState::Function& function, const Words& words);

  ShellState& state_;
  ShellWordReader in_;
  Words launcher_;
  int dead_ = 0;
};

}  // namespace shardplan
