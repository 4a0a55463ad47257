// Scripts within a script: functions, `bash -c`, here-documents, other files.
#include <algorithm>
#include <utility>

#include "tools/shell_interpreter.h"

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
  const auto own = [&](const char* name) {
    const auto found = state_.context.values.find(name);
    return found == state_.context.values.end() ? std::nullopt : std::optional(found->second);
  };
  const std::optional<Words> outer = own("@");
  state_.scopes.emplace_back();
  set_arguments({words.begin() + 1, words.end()});
  nested(function.text, function.file, function.line, launcher_);
  restore(state_.scopes.back());
  state_.scopes.pop_back();
  if (outer) {
    set_arguments(*outer);
  } else {
    set_arguments({});
    state_.context.values.erase("@");
    state_.context.values.erase("*");
  }
  if (state_.flow == Flow::kReturn) {
    state_.flow = Flow::kOn;
  }
}

// A script that is another file: one that this script has written, or one beside it.
bool ShellInterpreter::script_file(const Words& words, std::size_t at) {
  const std::string path = plain(words[at]);
  const auto written = state_.written.find(path);
  std::optional<std::string> text;
  if (written != state_.written.end()) {
    text = written->second;
  } else if (state_.given.read_file) {
    text = state_.given.read_file(path);
  }
  if (!text) {
    return false;
  }
  const bool sources = words.front() == "." || words.front() == "source";
  if (sources) {
    nested(*text, shell_program(path), 1, launcher_);
    state_.flow = state_.flow == Flow::kReturn ? Flow::kOn : state_.flow;
    return true;
  }
  Words launcher = launcher_;
  launcher.insert(launcher.end(), words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at));
  Words arguments(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  const ShellValues values = state_.context.values;
  const std::string exits_at = state_.script.exits_at;
  state_.scopes.emplace_back();
  set_arguments({arguments.begin() + 1, arguments.end()});
  nested(*text, shell_program(path), 1, launcher);
  state_.scopes.pop_back();
  state_.context.values = values;
  state_.flow = Flow::kOn;
  state_.script.exits_at = exits_at;
  return true;
}

// bash -c '...', bash file, sbatch --wrap '...', bash <<EOF, ssh host '... x.py ...': the inner
// commands instead of this one.
bool ShellInterpreter::inner_script(const Simple& simple) {
  const Words& words = simple.words;
  if (starts_nothing(words.front())) {
    return false;
  }
  const auto run_text = [&](const std::string& text, std::size_t num_launcher) {
    Words launcher = launcher_;
    launcher.insert(launcher.end(), words.begin(),
                    words.begin() + static_cast<std::ptrdiff_t>(num_launcher));
    nested(text, in_.file, simple.line, launcher);
    if (state_.flow != Flow::kOn) {  // its exit is its own
      state_.flow = Flow::kOn;
      state_.script.exits_at.clear();
    }
    return true;
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = shell_program(words[i]);
    if (words[i].starts_with("--wrap=")) {
      return run_text(words[i].substr(7), 0);
    }
    if (words[i] == "--wrap" && i + 1 < words.size()) {
      return run_text(words[i + 1], 0);
    }
    if (simple.here && (is_shell(words[i]) || name == "sbatch" || name == "srun")) {
      return run_text(*simple.here, name == "sbatch" ? 0 : i);
    }
    if (!is_shell(words[i])) {
      continue;
    }
    std::size_t at = i + 1;
    bool is_text = false;
    while (at < words.size() && words[at].starts_with('-')) {
      is_text = is_text || (!words[at].starts_with("--") && words[at].find('c') != words[at].npos);
      at += words[at] == "-o" ? 2 : 1;
    }
    if (at < words.size() && is_text) {
      return run_text(words[at], i);
    }
    if (at < words.size() && words[at].ends_with("sh")) {
      return script_file(words, at);
    }
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool is_script = words[i].ends_with(".sh") || words[i].ends_with(".slurm") ||
                           words[i].ends_with(".sbatch") || state_.written.contains(words[i]);
    if (is_script && script_file(words, i)) {
      return true;
    }
    if (words[i].ends_with(".py")) {
      break;  // a program: what stands behind it are its arguments
    }
    const bool has_program =
        words[i].find(".py ") != std::string::npos && words[i].front() != kUnknownMark;
    if (i > 0 && has_program && !shell_program(words.front()).starts_with("python")) {
      return run_text(words[i], i);
    }
  }
  return false;
}

}  // namespace shardplan
