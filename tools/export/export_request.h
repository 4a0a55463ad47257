// What a plan needs to be launched, before it becomes files of a framework.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/commands/prediction.h"
#include "tools/options/question.h"

namespace shardplan {

// The model as its config.json has it, which knows more than what memory and time depend on.
struct ExportedModel {
  std::string published;  // the name on the Hub, where the user gave it by that: "Qwen/Qwen3-8B"
  JsonValue config;       // an object; null where the model came from a run's own file
};

struct ExportRequest {
  const Question& question;
  const Prediction& prediction;
  const ExportedModel& model;
  const Library& library;
  std::string command;  // that asked: "shardplan estimate --model ..."

  const Job& job() const { return question.job; }
  const Plan& plan() const { return question.plan; }
};

// One setting in the framework's own words.
struct ExportedArgument {
  std::string name;                      // "--sequence-parallel", "training.seq_len"
  std::vector<std::string> values = {};  // none: a switch
  std::string comment = {};              // stands behind it
};

struct ArgumentGroup {
  std::string title;  // "MODEL"
  std::vector<ExportedArgument> arguments;
};

struct ExportedVariable {
  std::string name;
  std::string value;
  std::string comment = {};
};

struct ExportedFile {
  std::string name;  // within the folder: "launch.sh", "model/config.json"
  std::string text;
  bool is_program = false;
};

}  // namespace shardplan
