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

// A program of TRL and what it trains for: "trl dpo", examples/scripts/dpo.py.
struct Task {
  std::string_view program;
  std::string_view task;
};
constexpr std::array kTasks = std::to_array<Task>({
    {.program = "trl dpo", .task = "dpo"},
    {.program = "trl kto", .task = "kto"},
    {.program = "trl reward", .task = "reward"},
    {.program = "/scripts/dpo.py", .task = "dpo"},
    {.program = "/scripts/kto.py", .task = "kto"},
    {.program = "/scripts/orpo.py", .task = "orpo"},
    {.program = "/scripts/cpo.py", .task = "cpo"},
    {.program = "/scripts/reward.py", .task = "reward"},
    {.program = "/scripts/reward_modeling.py", .task = "reward"},
});

std::string trl_task(const std::string& program) {
  const std::string path = "/" + program;
  const auto* const found =
      std::ranges::find_if(kTasks, [&](const Task& each) { return path.ends_with(each.program); });
  return found == kTasks.end() ? "" : std::string(found->task);
}

bool is_swift_rlhf(const std::string& program) {
  return program == "swift rlhf" || program.ends_with("swift/cli/rlhf.py");
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

bool trains_by_preferences(const std::string& program) {
  return is_swift_rlhf(program) || !trl_task(program).empty();
}

void add_task(const Launch& launch, std::vector<Setting>& own) {
  const std::string task = trl_task(launch.program);
  const std::string name = task.empty() ? "rlhf_type" : "trl_task";
  const bool is_named = std::ranges::find(own, name, &Setting::name) != own.end();
  if (trains_by_preferences(launch.program) && !is_named) {
    own.push_back({.name = name,
                   .values = {task.empty() ? "dpo" : task},
                   .place = launch.place + ": " + name + ": "});
  }
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
  return is_trl_program(program) || !trl_task(program).empty() || is_recipe
             ? std::optional(TrainerProject::kTrl)
             : std::nullopt;
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
