#include "tools/options/run_job.h"

#include <algorithm>
#include <array>
#include <utility>

#include "data/arguments/trainer.h"
#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "tools/from/families.h"
#include "tools/from/file.h"
#include "tools/from/trainer.h"
#include "tools/options/given_cluster.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

// Sizes that others of the file's follow: dp, sequence_parallel. Not pp: the file's layers of
// stages are of its own, and the plan's follow anew (plan_of).
struct SizeArgument {
  const char* option;
  const char* megatron;
  const char* torchtitan;
  const char* nanotron;
};
constexpr std::array<SizeArgument, 3> kSizeArguments = {{
    {.option = "tp",
     .megatron = "--tensor-model-parallel-size",
     .torchtitan = "parallelism.tensor_parallel_degree",
     .nanotron = "parallelism.tp"},
    {.option = "cp",
     .megatron = "--context-parallel-size",
     .torchtitan = "parallelism.context_parallel_degree",
     .nanotron = "parallelism.context_parallel_size"},
    {.option = "ep",
     .megatron = "--expert-model-parallel-size",
     .torchtitan = "parallelism.expert_parallel_degree",
     .nanotron = "parallelism.expert_parallel_size"},
}};

// nullptr where the format has none.
const char* argument_of(const SizeArgument& size, RunFormat format) {
  switch (format) {
    case RunFormat::kMegatron: return size.megatron;
    case RunFormat::kTorchtitan: return size.torchtitan;
    case RunFormat::kNanotron: return size.nanotron;
    case RunFormat::kDeepspeed:
    case RunFormat::kTransformers: return nullptr;
  }
  throw std::logic_error("argument_of: unknown format");
}

// --tp 4 over a file is the file's own argument, so that the framework's rules see it.
void override_sizes(RunSettings& settings, const Options& options) {
  for (const SizeArgument& size : kSizeArguments) {
    const char* const name = argument_of(size, settings.format);
    if (name != nullptr && given(options, size.option)) {
      const std::string value = text_or(options, size.option, "");
      settings.sizes.push_back({.name = name,
                                .values = {value},
                                .place = "--" + std::string(size.option) + " " + value + ": ",
                                .is_option = true});
    }
  }
}

InputError unknown_name(const std::string& name, const RunSettings& settings,
                        const std::string& framework, const ArgumentTable& table,
                        const std::vector<ProfileOption>& switches) {
  std::vector<std::string> names = settings.variables;
  for (const ArgumentRow& row : table.rows) {
    names.push_back(row.name.substr(row.name.find_first_not_of('-')));
  }
  for (const ProfileOption& option : switches) { names.push_back(option.name); }
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  return InputError("--set: found '" + name + "', which neither " + framework + " nor " +
                    settings.file + " has, expected an argument, " +
                    (settings.variables.empty() ? "" : "a variable of the file, ") +
                    "a switch of the framework or a field of the plan" + suggestion(bare, names));
}

// Puts the words of --set that are arguments of the file over it, and returns them. A name that
// is an argument and a switch of the framework is the switch.
std::vector<std::string> override_settings(RunSettings& settings, const Options& options,
                                           const Library& library) {
  const std::string framework = framework_of(settings.format);
  const ArgumentTable table = argument_table(library, framework);
  const std::vector<ProfileOption> switches = profile_options(library, framework);
  std::vector<std::string> taken;
  for (const std::string& word : all_of(options, "set")) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (std::ranges::find(switches, name, &ProfileOption::name) != switches.end()) {
      continue;
    }
    if (std::ranges::find(settings.variables, name) != settings.variables.end()) {
      taken.push_back(word);  // a variable of the file
      continue;
    }
    Setting setting{.name = argument_named(settings, table, name),
                    .values = {},
                    .place = "--set " + word + ": ",
                    .is_option = true};
    if (setting.name.empty()) {
      throw unknown_name(name, settings, framework + " " + table.version, table, switches);
    }
    if (equals != std::string::npos) {
      setting.values.push_back(word.substr(equals + 1));
    }
    override_setting(settings, table, std::move(setting));
    taken.push_back(word);
  }
  return taken;
}

// Many of them are a line: the report has one for each.
void count_settings(const GivenRun& run, std::vector<std::string>& warnings) {
  constexpr std::size_t kMostLines = 3;
  std::vector<std::string> names;
  std::vector<std::string> lines;
  for (const SettingUse& use : run.reading.uses) {
    if (use.effect == SettingEffect::kUnknown) {
      names.push_back(use.name);
      lines.push_back(run.file + ": unknown setting " + use.name +
                      (use.value.empty() ? "" : " " + use.value) + ", " + use.meaning);
    }
  }
  if (lines.size() > kMostLines) {
    lines = {run.file + ": " + std::to_string(names.size()) +
             " unknown settings, in no table: " + joined(names)};
  }
  warnings.insert(warnings.end(), lines.begin(), lines.end());
}

bool is_of_trainer(const RunSettings& settings) {
  return settings.format == RunFormat::kDeepspeed || settings.format == RunFormat::kTransformers;
}

InputError no_model(const RunSettings& settings) {
  const bool is_deepspeed = settings.format == RunFormat::kDeepspeed;
  return InputError(settings.file + ": found no model in a configuration of " +
                    (is_deepspeed ? "DeepSpeed" : "transformers' Trainer") +
                    ", expected --model NAME beside it (see `shardplan list models`) or --model of "
                    "a config.json");
}

// Why a published model is not described, "" where it is. Megatron-SWIFT trains what an fp8
// checkpoint holds in the type that its arguments say; the Trainer puts adapters on weights of four
// bits.
std::string why_undescribed(const RunSettings& settings, const Library& library) {
  const std::vector<std::string>& words = settings.model_name.values;
  std::string name = words.empty() ? "" : words.front();
  const std::string lower = in_lower_case(name);
  if (settings.format == RunFormat::kMegatron && lower.ends_with("-fp8")) {
    name.resize(lower.rfind("-fp8"));
  } else if (settings.format != RunFormat::kMegatron) {
    name = unpacked_name(name);
  }
  const std::string preset = library.published_model(name);
  const std::string family = undescribed_family(
      name,
      {.layers = !preset.empty(),
       .tower = !preset.empty() && library.model(preset).model.tower.kind != TowerKind::kNone});
  return family.empty() ? ""
                        : "model " + shown(words.front(), Encoding::kUnchecked) + ": " + family;
}

// The model, the user's or the one that the file names: by the configuration that lies there, or by
// its published name. Nothing where that is of a family that is not described.
std::optional<InputError> find_model(RunSettings& settings, const Options& options,
                                     const Library& library) {
  if (given(options, "model")) {
    settings.model = required_text(options, "model");
    return std::nullopt;
  }
  if (settings.model_name.name.empty()) {
    return no_model(settings);
  }
  settings.model = configuration_beside(settings.model_name, settings.file);
  if (!settings.model.empty()) {
    return std::nullopt;
  }
  settings.undescribed = why_undescribed(settings, library);
  if (settings.undescribed.empty()) {
    const std::vector<std::string>& words = settings.model_name.values;
    settings.model = words.empty() ? "" : library.published_model(words.front());
  }
  return settings.model.empty() && settings.undescribed.empty()
             ? std::optional(unknown_model(settings.model_name))
             : std::nullopt;
}

// What is missing of the model and its length, where the file has no sizes. What is not described
// is the answer, before anything is asked for that would not help.
void name_model(RunSettings& settings, const Options& options, const ClusterSpec& cluster,
                const Library& library) {
  if (!is_of_trainer(settings) && settings.model_name.name.empty()) {
    return;
  }
  std::optional<InputError> missing = find_model(settings, options, library);
  const bool has_length =
      given(options, "sequence-length") || says_sequence_length(settings, library);
  if (!missing && is_of_trainer(settings) && !has_length && settings.undescribed.empty()) {
    missing = InputError(settings.file +
                         ": found no length of a sequence, expected --sequence-length N beside it");
  }
  if (missing &&
      (!is_of_trainer(settings) || read_run(settings, cluster, library).unsupported.empty())) {
    throw InputError(*missing);
  }
}

}  // namespace

bool names_argument(const std::string& word) {
  return word.substr(0, word.find('=')).find_first_of("-.") != std::string::npos;
}

GivenJob job_of_run(const Options& options, const Library& library) {
  GivenJob result;
  const std::string file = text_or(options, "from", "");
  const ClusterSpec whole = library.cluster(cluster_word(options, library));
  const ScriptRequest request{.set_words = all_of(options, "set"),
                              .num_gpus = count_or(options, "num-gpus", 0),
                              .cluster_gpus = whole.world_size(),
                              .node_gpus = whole.gpus_per_node};
  RunSettings settings = settings_from_file(file, result.warnings, request, library);
  const std::vector<std::string> taken = override_settings(settings, options, library);
  const ClusterSpec cluster = cluster_of(options, library, settings.num_gpus, result.warnings);
  name_model(settings, options, cluster, library);
  override_sizes(settings, options);
  RunReading reading = read_run(settings, cluster, library);
  result.run = GivenRun{.file = file, .reading = std::move(reading), .set_words = taken};
  result.job = result.run->reading.job;
  const std::vector<std::string>& notes = result.run->reading.notes;
  result.warnings.insert(result.warnings.end(), notes.begin(), notes.end());
  count_settings(*result.run, result.warnings);
  return result;
}

}  // namespace shardplan
