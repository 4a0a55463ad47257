#include "tools/from/trainer_command.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tools/from/swift.h"

namespace shardplan {
namespace {

// Two words that follow each other.
struct Command {
  std::string_view program;
  std::string_view task;
};
constexpr std::array kCommands = std::to_array<Command>({
    {.program = "swift", .task = "sft"},
    {.program = "swift", .task = "pt"},
    {.program = "swift", .task = "rlhf"},
    {.program = "megatron", .task = ""},
    {.program = "llamafactory-cli", .task = "train"},
    {.program = "lmf", .task = "train"},
    {.program = "axolotl", .task = "train"},
    {.program = "trl", .task = "sft"},
    {.program = "trl", .task = "dpo"},
    {.program = "trl", .task = "kto"},
    {.program = "trl", .task = "grpo"},
    {.program = "trl", .task = "rloo"},
    {.program = "trl", .task = "reward"},
});

// What may stand in front: "uv run --extra gpu trl sft", "python -m swift sft".
bool is_runner(const std::string& word) {
  constexpr std::array<std::string_view, 10> kRunners = {
      "uv", "uvx", "poetry", "pixi", "conda", "nohup", "python", "python3", "pipx", "time"};
  return std::ranges::find(kRunners, word.substr(word.rfind('/') + 1)) != kRunners.end();
}

bool has_word(const std::vector<std::string>& words, std::string_view name) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    std::string spelled = word.substr(0, word.find('='));
    std::ranges::replace(spelled, '-', '_');
    return spelled == name;
  });
}

}  // namespace

bool is_trl_program(const std::string& program) {
  return program.starts_with("trl ");
}

bool starts_trainer(const Launch& launch) {
  return is_swift_trainer(launch.program) || is_trl_program(launch.program) ||
         launch.program == "llamafactory-cli train" || launch.program == "lmf train" ||
         has_word(launch.arguments, "__model_name_or_path");
}

std::optional<TrainerProject> project_of_command(const Launch& launch,
                                                 const std::vector<Setting>& own) {
  const std::string& program = launch.program;
  const std::string path = "/" + program;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(own, name, &Setting::name) != own.end();
  };
  if (is_swift_trainer(program)) {
    return TrainerProject::kSwift;
  }
  if (program == "llamafactory-cli train" || program == "lmf train") {
    return TrainerProject::kFactory;
  }
  if (path.find("/open_instruct/finetune") != std::string::npos) {
    return TrainerProject::kOpenInstruct;
  }
  const bool is_recipe = path.ends_with("/sft.py") && !has("model_max_length") && !has("data_path");
  return is_trl_program(program) || is_recipe ? std::optional(TrainerProject::kTrl) : std::nullopt;
}

std::vector<std::string>::const_iterator trainer_command(const std::vector<std::string>& words) {
  for (auto each = words.begin(); each != words.end() && each + 1 != words.end(); ++each) {
    if (each != words.begin() && !is_runner(words.front())) {
      break;
    }
    const std::string name = each->substr(each->rfind('/') + 1);
    const bool is_command = std::ranges::any_of(kCommands, [&](const Command& command) {
      return name == command.program && (command.task.empty() || *(each + 1) == command.task);
    });
    if (is_command && each + 2 != words.end()) {
      return each;
    }
  }
  return words.end();
}

}  // namespace shardplan
