#include "tools/from/traced_command.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tools/from/launcher_prefix.h"

namespace shardplan {
namespace {

constexpr std::string_view kNameLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

// Behind "+ "; "" where nothing is traced. "++ " are commands inside others.
std::string_view traced_in(std::string_view line) {
  line.remove_prefix(launcher_prefix(line).size());
  return line.starts_with("+ ") ? line.substr(2) : std::string_view();
}

std::string_view first_word(std::string_view command) {
  return command.substr(0, command.find(' '));
}

// "NAME=value" alone, exported or not.
bool sets_variable(std::string_view command) {
  if (command.starts_with("export ")) {
    command.remove_prefix(std::string_view("export ").size());
  }
  const std::size_t end = command.find_first_not_of(kNameLetters);
  return end != std::string_view::npos && end > 0 && command[end] == '=';
}

bool starts_training(std::string_view command) {
  constexpr auto kPrograms = std::to_array<std::string_view>(
      {"torchrun", "deepspeed", "axolotl", "llamafactory-cli", "trl", "swift", "megatron"});
  constexpr auto kInside = std::to_array<std::string_view>(
      {"accelerate launch", "torch.distributed.run", "torch.distributed.launch", "torchrun "});
  std::string_view program = first_word(command);
  program = program.substr(program.rfind('/') + 1);  // npos + 1 is 0
  const bool may_start = program.starts_with("python") || program == "srun" ||
                         program == "mpirun" || program == "accelerate";
  return std::ranges::find(kPrograms, program) != kPrograms.end() ||
         (may_start && std::ranges::any_of(kInside, [&](std::string_view words) {
            return command.find(words) != std::string_view::npos;
          }));
}

}  // namespace

void TracedCommand::read(const std::string& line, std::int64_t number) {
  constexpr std::size_t kMostVariables = 1024;
  const std::string_view command = traced_in(line);
  if (command.empty()) {
    return;
  }
  if (starts_training(command)) {
    command_.clear();
    for (const std::string& variable : variables_) { command_ += variable + "; "; }
    command_ += command;
    line_ = number;
  } else if (sets_variable(command) && variables_.size() < kMostVariables) {
    variables_.emplace_back(command);
  }
}

std::string TracedCommand::script() const {
  constexpr std::int64_t kMostLines = 100'000;
  const bool has_place = line_ > 0 && line_ <= kMostLines;
  return std::string(static_cast<std::size_t>(has_place ? line_ - 1 : 0), '\n') + command_;
}

}  // namespace shardplan
