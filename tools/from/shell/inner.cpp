// Scripts within a script: functions, `bash -c`, here-documents, other files.
#include "tools/from/shell/inner.h"

#include <algorithm>

#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

const Words kShells = {"bash", "sh", "zsh", "dash"};
// Programs whose arguments may name a training that they do not start.
const Words kOthers = {"echo",  "printf", "cat",   "cp",    "mv",      "ls",    "sed",
                       "grep",  "awk",    "rm",    "chmod", "tee",     "ln",    "diff",
                       "git",   "wget",   "curl",  "tar",   "pip",     "test",  "cd",
                       "mkdir", "kill",   "pkill", "pgrep", "killall", "rsync", "scp",
                       "read",  "touch",  "ps",    "which", "type"};

bool is_shell(const std::string& word) {
  return std::ranges::find(kShells, shell_program(word)) != kShells.end();
}

// Of the shell at `shell` the first word that is no option, and whether it is a text (-c).
struct ShellArgument {
  std::size_t at = 0;
  bool is_text = false;
};
ShellArgument shell_argument(const Words& words, std::size_t shell) {
  ShellArgument argument{.at = shell + 1};
  while (argument.at < words.size() && words[argument.at].starts_with('-')) {
    const std::string& option = words[argument.at];
    argument.is_text |= !option.starts_with("--") && option.find('c') != std::string::npos;
    argument.at += option == "-o" ? 2 : 1;
  }
  return argument;
}

// "#!/usr/bin/env python3"
bool is_of_other_program(const std::string& text) {
  const std::string first = text.substr(0, text.find('\n'));
  return first.starts_with("#!") && first.find("sh") == std::string::npos;
}

bool is_python(const std::string& word) {
  return shell_program(word).starts_with("python") || word.ends_with(".py");
}

}  // namespace

std::string shell_program(const std::string& word) {
  return word.substr(word.rfind('/') + 1);
}

bool starts_nothing(const std::string& word) {
  return std::ranges::find(kOthers, shell_program(word)) != kOthers.end();
}

void ShellInterpreter::nested(const std::string& text, const std::string& file, std::int64_t line,
                              const Words& launcher) {
  ShellInterpreter inner(state_, text, file, line, launcher);
  inner.dead_ = dead_;
  inner.install();
  inner.whole();
  install();
}

void ShellInterpreter::call(const ShellState::Function& function, const Words& words) {
  const std::optional<Words> outer = value_of("@");
  const std::set<std::string> assigned = state_.assigned;
  state_.scopes.emplace_back();
  set_arguments(Words(words.begin() + 1, words.end()));
  nested(function.text, function.file, function.line, launcher_);
  restore(state_.scopes.back());
  std::erase_if(state_.assigned, [&](const std::string& name) {
    return state_.scopes.back().contains(name) && !assigned.contains(name);
  });
  state_.scopes.pop_back();
  set_arguments(outer);
  if (state_.flow == Flow::kReturn) {
    state_.flow = Flow::kOn;
  }
}

// A script in a process of its own, behind the first words of a command. It sees what is exported,
// what stands in front of the command, and NAME=VALUE among those words: --export=A=1,B=2, env A=1.
void ShellInterpreter::child(const Simple& simple, std::size_t num_launcher,
                             const ShellState::Function& script,
                             const std::optional<Words>& arguments) {
  const Apart apart(*this);
  for (const auto& [name, value] : simple.before) { state_.exported.insert(name); }
  std::erase_if(state_.context.values, [&](const auto& each) {
    const std::string& name = each.first;
    return (is_shell_name(name) || name.find_first_of("![") != std::string::npos) &&
           name != "BASH_SOURCE" && !state_.exported.contains(each.first) &&
           !state_.given.values.contains(each.first);
  });
  Words launcher = launcher_;
  for (std::size_t i = 0; i < num_launcher; ++i) {
    launcher.push_back(simple.words[i]);
    pass_variables(simple.words[i]);
  }
  set_arguments(arguments);
  nested(script.text, script.file, script.line, launcher);
}

// "--export=A=1,B=2", "A=1".
void ShellInterpreter::pass_variables(const std::string& word) {
  std::size_t start = word.starts_with("--export=") ? std::string_view("--export=").size() : 0;
  while (start < word.size()) {
    const std::size_t end = std::min(word.find(',', start), word.size());
    const std::string each = word.substr(start, end - start);
    const std::size_t equals = each.find('=');
    if (equals != std::string::npos && is_shell_name(each.substr(0, equals))) {
      store(each.substr(0, equals), {each.substr(equals + 1)}, false, false);
      state_.exported.insert(each.substr(0, equals));
    }
    start = end + 1;
  }
}

// A script that is another file: one that this script has written, or one beside it.
bool ShellInterpreter::script_file(const Simple& simple, std::size_t at) {
  const Words& words = simple.words;
  const std::string path = plain(words[at]);
  const auto written = state_.written.find(path);
  std::optional<std::string> text;
  if (written != state_.written.end()) {
    text = written->second;
  } else if (state_.given.read_file) {
    text = state_.given.read_file(path);
  }
  if (!text || is_of_other_program(*text)) {
    return false;
  }
  const bool sources = words.front() == "." || words.front() == "source";
  if (sources) {
    nested(*text, shell_program(path), 1, launcher_);
    state_.flow = state_.flow == Flow::kReturn ? Flow::kOn : state_.flow;
    return true;
  }
  child(simple, at, {.text = *text, .file = shell_program(path), .line = 1},
        Words(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end()));
  return true;
}

// bash -c '...', bash file, sbatch --wrap '...', bash <<EOF, ssh host '... x.py ...': the inner
// commands instead of this one.
bool ShellInterpreter::inner_script(const Simple& simple) {
  const Words& words = simple.words;
  if (starts_nothing(words.front())) {
    return false;
  }
  const auto run_text = [&](const std::string& text, std::size_t num_launcher,
                            const std::optional<Words>& arguments = std::nullopt) {
    child(simple, num_launcher, {.text = text, .file = in_.file, .line = simple.line}, arguments);
    return true;
  };
  const bool reads_here = simple.here && std::ranges::none_of(words, is_python);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = shell_program(words[i]);
    if (words[i].starts_with("--wrap=")) {
      return run_text(words[i].substr(7), i);
    }
    if (words[i] == "--wrap" && i + 1 < words.size()) {
      return run_text(words[i + 1], i);
    }
    if (reads_here && (is_shell(words[i]) || name == "sbatch" || name == "srun")) {
      return run_text(*simple.here, name == "sbatch" ? words.size() : i);
    }
    if (!is_shell(words[i])) {
      continue;
    }
    const auto [at, is_text] = shell_argument(words, i);
    if (at < words.size() && is_text) {
      const std::size_t first = std::min(at + 2, words.size());  // behind $0
      return run_text(words[at], i,
                      Words(words.begin() + static_cast<std::ptrdiff_t>(first), words.end()));
    }
    if (at < words.size() && (words[at].ends_with("sh") || state_.written.contains(words[at]))) {
      return script_file(simple, at);
    }
  }
  const std::string program = shell_program(words.front());
  const bool may_be_script = program == "sbatch" || program == "srun" || program == "qsub";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].ends_with(".py")) {
      break;  // a program: what stands behind it are its arguments
    }
    const bool is_script = words[i].ends_with(".sh") || words[i].ends_with(".slurm") ||
                           words[i].ends_with(".sbatch") ||
                           ((i == 0 || may_be_script) && state_.written.contains(words[i]));
    if (is_script && script_file(simple, i)) {
      return true;
    }
    const char first = words[i].empty() ? '\0' : words[i].front();
    const bool has_program = words[i].find(".py ") != std::string::npos && first != kUnknownMark &&
                             first != kUnknownWordsMark;
    if (i > 0 && has_program && !is_python(words.front())) {
      return run_text(words[i], i);
    }
  }
  return false;
}

}  // namespace shardplan
