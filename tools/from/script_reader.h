// Reads the one training that a launch script starts: shell.cpp, and where a file is named that
// one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"
#include "tools/from/file.h"
#include "tools/from/shell/launch.h"

namespace shardplan {

// The training of one launch script.
class ScriptReader {
 public:
  ScriptReader(std::string text, std::string file, const ScriptRequest& request,
               const Library& library);
  RunSettings settings(std::vector<std::string>& notes);

 private:
  // Among what a training says of itself.
  static constexpr const char* kNumGpus = "the number of GPUs";

  std::optional<std::string> file_beside(const std::string& path) const;
  const ArgumentRow* row_of(const std::string& name) const;
  bool matters(const std::string& name) const;
  std::map<std::string, std::string> told(const Launch& launch) const;
  std::vector<Launch> chosen(const ShellScript& script) const;
  Launch the_one(const std::vector<Launch>& trainings) const;

  // script_choices.cpp
  bool pass_guard(const ShellScript& script, std::vector<std::string>& notes);

  // no_training.cpp
  InputError no_training(const ShellScript& script) const;

  // script_choices.cpp: what another way of one choice changes in the settings that matter.
  struct Effect {
    std::string name;       // of the first setting; "" for none
    bool resolves = false;  // a value that is known then, and is not now
    std::string variable;   // whose value is another then; "" for none
  };

  static std::string differing_variable(const ShellScript& script, const ShellScript& other,
                                        const std::string& told);
  Effect effect_of(const ShellChoice& choice, int taken, const ShellScript& script,
                   const std::map<std::string, std::string>& now) const;
  static std::string answer_to(const Effect& effect);
  static void report(const ShellChoice& choice, const Effect& effect,
                     std::vector<std::string>& notes);
  void check_choices(const ShellScript& script, const Launch& launch,
                     std::vector<std::string>& notes) const;

  std::string text_;
  const std::string file_;
  const ScriptRequest& request_;
  const Library& library_;
  const ArgumentTable table_;
  const ArgumentTable trainer_table_;
  ShellGiven given_;
};

}  // namespace shardplan
