#include "tools/export/trainer.h"

#include <utility>

#include "tools/export/accelerate_file.h"
#include "tools/export/config_file.h"
#include "tools/export/deepspeed_file.h"
#include "tools/export/script.h"
#include "tools/export/trainer_arguments.h"
#include "tools/export/trainer_models.h"
#include "tools/export/trainer_program.h"

namespace shardplan {
namespace {

ArgumentGroup data_arguments() {
  return {.title = "DATA",
          .arguments = {{.name = "--train_file",
                         .values = {"\"$TRAIN_FILE\""},
                         .comment = "texts; without one, random tokens"}}};
}

std::vector<ExportedVariable> environment_of(const FrameworkProfile& profile) {
  const bool expands = profile.allocator == AllocatorKind::kCachingExpandable;
  return {{.name = "PYTORCH_CUDA_ALLOC_CONF",
           .value = std::string("expandable_segments:") + (expands ? "True" : "False")},
          {.name = "OMP_NUM_THREADS", .value = std::to_string(profile.host_threads)}};
}

// What starts train.py, up to the program's name, and the variables that it needs.
struct Launcher {
  std::string variables;
  std::string words;
};

std::vector<ExportedFile> files_of(const ExportRequest& request, const std::string& what,
                                   const Launcher& launcher, std::vector<ArgumentGroup> groups) {
  refuse_model_without_class(request);
  std::string text = script_opening(request, what);
  text += "TRAIN_FILE=\"${TRAIN_FILE:-}\"  # TODO: lines of text, or JSON lines with \"text\"\n" +
          launcher.variables + "\n" + environment_text(environment_of(request.job().profile)) +
          "\n";
  groups.push_back(data_arguments());
  for (const ArgumentGroup& group : groups) { text += array_text(group); }
  text += "\n" + launcher.words + "  train.py" + array_words(groups) + "\n";
  std::vector<ExportedFile> files = {
      {.name = "launch.sh", .text = text, .is_program = true},
      {.name = "train.py", .text = std::string(trainer_program()), .is_program = true},
      slurm_file(request)};
  if (request.model.published.empty() && request.model.config.kind == JsonKind::kObject) {
    files.push_back({.name = "model/config.json", .text = config_text(request.model.config)});
  }
  return files;
}

}  // namespace

std::vector<ExportedFile> accelerate_files(const ExportRequest& request) {
  const Launcher launcher = {
      .variables = place_text(),
      .words =
          "accelerate launch --config_file accelerate.yaml --machine_rank \"$NODE_RANK\" \\\n"
          "  --main_process_ip \"$MASTER_ADDR\" --main_process_port \"$MASTER_PORT\" \\\n"};
  std::vector<ExportedFile> files =
      files_of(request, "Trainer of transformers", launcher, trainer_arguments(request));
  files.push_back(accelerate_file_of(request));
  return files;
}

std::vector<ExportedFile> deepspeed_files(const ExportRequest& request) {
  std::vector<ArgumentGroup> groups = trainer_arguments(request);
  groups.push_back(
      {.title = "SHARDING", .arguments = {{.name = "--deepspeed", .values = {"deepspeed.json"}}}});
  std::vector<ExportedFile> files = files_of(
      request, "Trainer of transformers with DeepSpeed",
      {.variables = geometry_text(request.job().cluster), .words = torchrun_text()}, groups);
  files.push_back(deepspeed_file_of(request));
  return files;
}

}  // namespace shardplan
