#include "tools/export/own_file.h"

#include "data/read/text_file.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/export/megatron.h"
#include "tools/export/own_configuration.h"
#include "tools/export/own_script.h"
#include "tools/export/read_back.h"
#include "tools/export/text_difference.h"
#include "tools/export/torchtitan.h"

namespace shardplan {
namespace {

bool is_script(const std::string& file) {
  return file.ends_with(".sh") || file.ends_with(".bash") || file.ends_with(".slurm") ||
         file.ends_with(".sbatch");
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
    default: return false;
  }
}

std::vector<ExportedFile> own_files(const ExportRequest& request, const Options& options) {
  const GivenRun& run = *request.question.run;
  const Question before = question_of_files(options, request.library, run.file, {});
  const Prediction unknown;  // what the run takes as it is stands in no file
  const ExportRequest as_it_is = {.question = before,
                                  .prediction = unknown,
                                  .model = request.model,
                                  .library = request.library,
                                  .command = request.command};
  const std::string old_text = read_text_file(run.file);
  const bool is_megatron = request.job().profile.memory_model == MemoryModel::kMegatron;
  const std::string new_text =
      is_megatron ? edited_script(old_text, changes_between(flat(megatron_groups(as_it_is)),
                                                            flat(megatron_groups(request))))
                  : edited_configuration(old_text, torchtitan_sections(as_it_is),
                                         torchtitan_sections(request));
  const std::string name = base_name(run.file);
  return {{.name = name, .text = new_text, .is_program = is_megatron},
          {.name = "changes.diff",
           .text = text_difference(old_text, new_text, "a/" + name, "b/" + name)}};
}

}  // namespace shardplan
