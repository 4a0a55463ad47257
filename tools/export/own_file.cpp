#include "tools/export/own_file.h"

#include <algorithm>

#include "data/read/text_file.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/export/megatron.h"
#include "tools/export/own_configuration.h"
#include "tools/export/own_script.h"
#include "tools/export/own_trainer.h"
#include "tools/export/own_yaml.h"
#include "tools/export/read_back.h"
#include "tools/export/text_difference.h"
#include "tools/export/torchtitan.h"
#include "tools/from/trainer.h"

namespace shardplan {
namespace {

bool is_script(const std::string& file) {
  return file.ends_with(".sh") || file.ends_with(".bash") || file.ends_with(".slurm") ||
         file.ends_with(".sbatch");
}

bool is_yaml(const std::string& file) {
  return file.ends_with(".yaml") || file.ends_with(".yml");
}

std::string base_name(const std::string& file) {
  return file.substr(file.rfind('/') + 1);
}

std::vector<ExportedArgument> flat(const std::vector<ArgumentGroup>& groups) {
  std::vector<ExportedArgument> arguments;
  for (const ArgumentGroup& group : groups) {
    arguments.insert(arguments.end(), group.arguments.begin(), group.arguments.end());
  }
  return arguments;
}

std::string edited_text(const ExportRequest& request, const Question& before,
                        const std::string& text) {
  const std::string& file = request.question.run.value().file;
  if (is_yaml(file)) {
    return edited_yaml(text, trainer_changes(text, file, before, request.question));
  }
  const Prediction unknown;  // what the run takes as it is stands in no file
  const ExportRequest as_it_is = {.question = before,
                                  .prediction = unknown,
                                  .model = request.model,
                                  .library = request.library,
                                  .command = request.command};
  return is_script(file) ? edited_script(text, changes_between(flat(megatron_groups(as_it_is)),
                                                               flat(megatron_groups(request))))
                         : edited_configuration(text, torchtitan_sections(as_it_is),
                                                torchtitan_sections(request));
}

// Configurations of DeepSpeed and FSDP that a Trainer's YAML names, under their own names.
std::vector<ExportedFile> named_files(const std::string& text, const std::string& file) {
  std::vector<ExportedFile> files;
  for (const YamlPath& path : {YamlPath{"deepspeed"}, YamlPath{"fsdp"}, YamlPath{"fsdp_config"},
                               YamlPath{"dist_config", "config_file"},
                               YamlPath{"deepspeed_config", "deepspeed_config_file"}}) {
    const std::string name = yaml_value(text, path);
    const std::string found =
        name.ends_with(".json") || is_yaml(name) ? file_beside(name, file) : "";
    if (!found.empty() && found != file) {
      files.push_back({.name = base_name(name), .text = read_text_file(found)});
    }
  }
  return files;
}

}  // namespace

bool has_own_file(const ExportRequest& request) {
  if (!request.question.run) {
    return false;
  }
  const GivenRun& run = *request.question.run;
  if (run.reading.framework != request.job().profile.name) {
    return false;
  }
  switch (request.job().profile.memory_model) {
    case MemoryModel::kMegatron: return is_script(run.file);
    case MemoryModel::kTorchtitan: return run.file.ends_with(".toml");
    case MemoryModel::kTransformers:
    case MemoryModel::kDeepspeed: return is_yaml(run.file);
    default: return false;
  }
}

bool may_have_new_files(const ExportRequest& request) {
  return is_yaml(request.question.run.value().file);
}

Options options_beside_own_file(const ExportRequest& request, const Options& options) {
  const Options beside = options_beside_files(options);
  const std::string& file = request.question.run.value().file;
  return is_yaml(file) ? with_words_beside(beside, options, read_text_file(file), request.question)
                       : beside;
}

Question question_as_it_is(const ExportRequest& request, const Options& beside) {
  return question_of_files(beside, request.library, request.question.run.value().file, {});
}

std::vector<ExportedFile> own_files(const ExportRequest& request, const Question& before) {
  const std::string& file = request.question.run.value().file;
  const std::string old_text = read_text_file(file);
  const std::string new_text = edited_text(request, before, old_text);
  const std::string name = base_name(file);
  std::vector<ExportedFile> files = {
      {.name = name, .text = new_text, .is_program = is_script(name)},
      {.name = "changes.diff",
       .text = text_difference(old_text, new_text, "a/" + name, "b/" + name)}};
  if (is_yaml(name)) {
    std::ranges::move(named_files(old_text, file), std::back_inserter(files));
  }
  return files;
}

}  // namespace shardplan
