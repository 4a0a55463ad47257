// A launch script of Megatron-LM: the command that starts a .py file with its arguments, the
// launcher's number of GPUs, and what the script exports.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "tools/from_file.h"
#include "tools/shell_words.h"

namespace shardplan {
namespace {

bool is_program(const std::string& word) {
  return word.ends_with(".py");
}

void append_split(std::vector<std::string>& words, const std::string& text) {
  std::size_t start = 0;
  while ((start = text.find_first_not_of(" \t\n", start)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t\n", start), text.size());
    words.push_back(text.substr(start, end - start));
    start = end;
  }
}

// "bash -c '... python pretrain.py --x 1'": the words of the inner command.
std::vector<std::string> with_inner_command(const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const std::string& word : words) {
    if (word.find(".py ") == std::string::npos) {
      all.push_back(word);
    } else {
      append_split(all, word);
    }
  }
  return all;
}

// Programs of Megatron-LM beside pretrain_gpt.py, by a part of their names. Others, such as a
// user's own, are taken for a pretrain_gpt.py.
struct OtherProgram {
  std::string_view part;
  std::string_view what;
};
constexpr std::array<OtherProgram, 10> kOtherPrograms = {{
    {.part = "pretrain_bert", .what = "trains a BERT"},
    {.part = "pretrain_t5", .what = "trains a T5"},
    {.part = "pretrain_ict", .what = "trains a retriever"},
    {.part = "pretrain_retro", .what = "trains a retrieval model"},
    {.part = "pretrain_vision", .what = "trains a vision model"},
    {.part = "pretrain_vlm", .what = "trains a vision and language model"},
    {.part = "pretrain_mamba", .what = "trains a hybrid of Mamba layers"},
    {.part = "train_rl", .what = "trains by reinforcement learning"},
    {.part = "generat", .what = "generates text"},
    {.part = "inference", .what = "runs inference"},
}};

void check_program(const std::string& word, const std::string& opening) {
  const std::string name = word.substr(word.rfind('/') + 1);
  const auto* const other = std::ranges::find_if(kOtherPrograms, [&](const OtherProgram& each) {
    return name.find(each.part) != std::string::npos;
  });
  if (other != kOtherPrograms.end()) {
    throw InputError(opening + "found " + name + ", which " + std::string(other->what) +
                     ", expected a program that trains a GPT decoder, such as pretrain_gpt.py");
  }
}

struct Launch {
  std::vector<std::string> launcher;
  std::string program;
  std::vector<std::string> arguments;
  std::int64_t line = 1;
};

std::optional<Launch> launch_of(const ShellCommand& command) {
  const std::vector<std::string> words = with_inner_command(command.words);
  const auto program = std::ranges::find_if(words, is_program);
  if (program == words.end()) {
    return std::nullopt;
  }
  return Launch{.launcher = {words.begin(), program},
                .program = *program,
                .arguments = {program + 1, words.end()},
                .line = command.line};
}

// A file of arguments that another script reads: the variable that holds --num-layers.
std::optional<Launch> variable_of(const ShellScript& script, const std::string& file,
                                  std::vector<std::string>& notes) {
  Launch launch;
  const auto variable = std::ranges::find_if(script.variables, [&](const auto& each) {
    launch.arguments.clear();
    for (const std::string& value : each.second) { append_split(launch.arguments, value); }
    return std::ranges::find(launch.arguments, "--num-layers") != launch.arguments.end();
  });
  if (variable == script.variables.end()) {
    return std::nullopt;
  }
  notes.push_back(file + ": no command starts a .py file: the arguments in " + variable->first +
                  " are read, what another script adds is not known");
  return launch;
}

// The value of an option of the launcher: "--nproc_per_node 8", "--nproc-per-node=8".
std::int64_t launcher_count(const std::vector<std::string>& words, const std::string& name) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    std::ranges::replace(word, '_', '-');
    if (word == name && i + 1 < words.size()) {
      text = words[i + 1];
    } else if (word.starts_with(name + "=")) {
      text = word.substr(name.size() + 1);
    }
  }
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, count);
  return !text.empty() && read.ec == std::errc{} && read.ptr == end && count > 0 ? count : 0;
}

// "#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8" or "--gres=gpu:8".
std::int64_t batch_count(const std::vector<std::string>& comments,
                         const std::vector<std::string>& names) {
  for (const std::string& comment : comments) {
    for (const std::string& name : names) {
      const std::size_t found = comment.find(name);
      if (found != std::string::npos) {
        const std::string word = comment.substr(found + name.size());
        return launcher_count({"x=" + word.substr(0, word.find(' '))}, "x");
      }
    }
  }
  return 0;
}

std::int64_t num_gpus_of(const Launch& launch, const ShellScript& script) {
  const std::int64_t per_node = launcher_count(launch.launcher, "--nproc-per-node");
  const std::int64_t nodes = launcher_count(launch.launcher, "--nnodes");
  if (per_node > 0) {
    return per_node * std::max<std::int64_t>(nodes, 1);
  }
  return batch_count(script.comments, {"--nodes=", "-N "}) *
         batch_count(script.comments, {"--gpus-per-node=", "--gres=gpu:", "--ntasks-per-node="});
}

bool is_argument(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

// "$@" and its like: what the script's caller adds, which the file does not say.
bool is_callers(const std::string& word) {
  return word.starts_with("$@") || word.starts_with("$*") || word.starts_with("${@") ||
         word.starts_with("${*");
}

InputError no_argument(const std::string& opening, const std::string& word) {
  return InputError(opening + "found '" + word + "' behind the program's name" +
                    (word.starts_with('$') ? ", a variable that nothing in this file sets" : "") +
                    ", expected an argument such as --bf16");
}

std::vector<Setting> settings_of(const Launch& launch, const std::string& file,
                                 std::vector<std::string>& notes) {
  std::vector<Setting> settings;
  const std::string opening = file + ":" + std::to_string(launch.line) + ": ";
  for (const std::string& word : launch.arguments) {
    if (is_callers(word)) {
      notes.push_back(opening + word +
                      ": arguments of the script's caller, taken as none; --set adds "
                      "them");
    } else if (is_argument(word)) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      settings.push_back({.name = name, .values = {}, .place = opening + name + ": "});
      if (equals != std::string::npos) {
        settings.back().values.push_back(word.substr(equals + 1));
      }
    } else if (settings.empty()) {
      throw no_argument(opening, word);
    } else {
      settings.back().values.push_back(word);
    }
  }
  return settings;
}

}  // namespace

RunSettings settings_from_shell(const std::string& text, const std::string& file,
                                std::vector<std::string>& notes) {
  const ShellScript script = read_shell(text, file);
  std::optional<Launch> launch;
  for (const ShellCommand& command : script.commands) {
    std::optional<Launch> found = launch_of(command);
    if (found && (!launch || found->arguments.size() >= launch->arguments.size())) {
      launch = std::move(found);  // the longest: training, not preparation
    }
  }
  if (!launch) {
    launch = variable_of(script, file, notes);
  }
  if (!launch || launch->arguments.empty()) {
    throw InputError(file +
                     ": found no command that starts a .py file with arguments, expected one such "
                     "as torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 ...");
  }
  notes.insert(notes.end(), script.notes.begin(), script.notes.end());
  RunSettings settings;
  settings.file = file;
  check_program(launch->program, file + ":" + std::to_string(launch->line) + ": ");
  settings.arguments = settings_of(*launch, file, notes);
  settings.num_gpus = num_gpus_of(*launch, script);
  for (const auto& [name, value] : script.exported) {
    const std::string line = std::to_string(script.export_line.at(name));
    settings.environment.push_back({.name = name, .values = {value}, .place = file});
    settings.environment.back().place.append(":").append(line).append(": ").append(name + ": ");
  }
  return settings;
}

}  // namespace shardplan
