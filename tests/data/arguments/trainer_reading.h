// A run of transformers' Trainer or a program around it, of Llama 3.2 1B on eight H100, as it is
// read.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"

namespace shardplan {

using TrainerWords = std::vector<std::pair<std::string, std::string>>;

inline RunReading read_trainer_run(TrainerProject project, const TrainerWords& words,
                                   const std::string& model = "llama3.2-1b") {
  const Library library;
  RunSettings settings;
  settings.format = RunFormat::kTransformers;
  settings.trainer = project;
  settings.file = "run";
  settings.model = model;
  for (const auto& [name, value] : words) {
    settings.arguments.push_back({.name = name, .values = {value}, .place = "run: " + name + ": "});
  }
  return read_run(settings, library.cluster("1x8-h100"), library);
}

inline bool has_note(const RunReading& run, std::string_view text) {
  for (const std::string& note : run.notes) {
    if (note.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace shardplan
