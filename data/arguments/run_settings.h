// The run that a user already has: its arguments and environment, and what they make of a Job and a
// Plan, as the framework itself reads them.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/arguments.h"
#include "estimator/plan/job.h"

namespace shardplan {

enum class RunFormat { kMegatron, kTorchtitan, kNanotron, kDeepspeed, kTransformers };
// Whose settings these are: the name of its table of arguments and of its profile.
std::string framework_of(RunFormat format);

// transformers' Trainer, and the programs around it: whose names and defaults a run has.
enum class TrainerProject {
  kTransformers,
  kTrl,
  kFactory,
  kFactoryV1,  // LLaMA-Factory's version 1, a loop of its own
  kAxolotl,
  kSwift,
  kOpenInstruct
};

struct RunSettings {
  RunFormat format = RunFormat::kMegatron;
  std::string file;  // as messages name it
  std::vector<Setting> arguments;
  std::vector<Setting> sizes;  // over the arguments; the global batch stays that of their own sizes
  std::vector<Setting> environment;
  std::int64_t num_gpus = 0;           // of the launcher; 0: not stated
  std::vector<std::string> variables;  // of the file: what it reads or sets, by name
  Setting model_name = {};             // what names the model, in a file without its sizes
  std::string model = {};              // then: preset or path, the user's or by that name
  TrainerProject trainer = TrainerProject::kTransformers;  // of kDeepspeed and kTransformers
  std::string undescribed = {};                            // why its model is not; "" where it is
  bool is_configuration = false;  // names no launcher: the framework's own is assumed
};

struct RunReading {
  std::string framework;           // name of the profile
  bool has_profile = false;        // the library knows it; else `job.profile` is unset
  Job job;                         // all of it, for the cluster given; where `unsupported`, a
                                   // vocab of 0 is one that is not known
  Plan plan;                       // with the framework's defaults
  bool launcher_assumed = false;   // the framework's own, which sets the allocator
  bool batch_stated = false;       // else the global batch is one microbatch of every rank
  std::string unsupported;         // "unsupported: ...": why no estimate is possible; "" if it is
  std::vector<SettingUse> uses;    // every setting, in order
  std::vector<std::string> notes;  // what was taken without the run's saying so
};

// The arguments with the sizes over them.
std::vector<Setting> resized_arguments(const RunSettings& settings);

// InputError for values of the wrong kind and for what the framework itself refuses to start with.
RunReading read_run(const RunSettings& settings, const ClusterSpec& cluster,
                    const Library& library);

// Unsupported for this reason, unless it is for another one already.
void refuse(RunReading& run, const std::string& what);
// Sets the profile's switch, or refuses the run where that is not possible.
void want(RunReading& run, const std::string& name, const std::string& word,
          const Library& library);
// Whether the profile declares such a switch that takes the word.
bool takes_word(const RunReading& run, const std::string& name, const std::string& word,
                const Library& library);
// The profile of run.framework; refuses the run where the library has none.
bool take_profile(RunReading& run, const Library& library);

// {"arguments": {"--tp": 2, "--bf16": true} or ["--tp", "2"], "environment": {"NAME": "value"}}.
RunSettings run_settings(const JsonValue& value, const std::string& file);

// A configuration in sections: {"training": {"seq_len": 8192}} is training.seq_len.
RunSettings section_settings(const JsonValue& value, const std::string& file, RunFormat format);

// The words of "[attn mlp]", as Megatron-LM's test configurations write several of them; any other
// text is one word, a Python list ("[1]*3") too.
std::vector<std::string> bracketed_words(const std::string& text);

}  // namespace shardplan
