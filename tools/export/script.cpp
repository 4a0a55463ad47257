#include "tools/export/script.h"

#include <algorithm>
#include <utility>

#include "tools/options/command_words.h"
#include "tools/report/text.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

constexpr std::int64_t kCommentWidth = 98;  // of wrapped comment lines

// Lines of at most kCommentWidth columns behind "# ", broken at blanks.
std::string wrapped_comment(const std::string& text, const std::string& indent) {
  std::string lines;
  std::string line = "#";
  std::size_t begin = 0;
  while ((begin = text.find_first_not_of(' ', begin)) != std::string::npos) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (line.size() > 1 &&
        static_cast<std::int64_t>(line.size() + 1 + word.size()) > kCommentWidth) {
      lines += line + "\n";
      line = "#" + indent;
    }
    line += " " + word;
    begin = end;
  }
  return lines + line + "\n";
}

// A variable of the script stands in double quotes as it is; a comma could be meant to divide words
// of the array, as ShellCheck says (SC2054).
std::string array_word(const std::string& value) {
  if (value.starts_with("\"$")) {
    return value;
  }
  const bool is_list = value.find(',') != std::string::npos && shell_word(value) == value;
  return is_list ? '"' + value + '"' : shell_word(value);
}

std::string prediction_sentence(const ExportRequest& request) {
  const MemoryEstimate& memory = request.prediction.memory;
  const StageMemory& worst = memory.stages[static_cast<std::size_t>(memory.worst_stage)];
  return "Predicted: " + std::string(name_of(request.prediction.status)) + ", " +
         gib(worst.device_used_bytes) + " of " + gib(device_capacity_bytes(request.job().cluster)) +
         " GiB of the fullest " + request.job().cluster.gpu.id + ", " +
         fixed(request.prediction.time.total_s, 3) + " s a step, " +
         whole(request.prediction.time.tokens_per_s_per_gpu) + " tokens/s a GPU.";
}

}  // namespace

std::string array_text(const ArgumentGroup& group) {
  std::string text = group.title + "_ARGS=(\n";
  for (const ExportedArgument& argument : group.arguments) {
    std::string line = "  " + argument.name;
    for (const std::string& value : argument.values) { line += " " + array_word(value); }
    text += line + (argument.comment.empty() ? "" : "  # " + argument.comment) + "\n";
  }
  return text + ")\n";
}

std::string array_words(const std::vector<ArgumentGroup>& groups) {
  std::string words;
  for (const ArgumentGroup& group : groups) {
    words += " \\\n  \"${" + group.title + "_ARGS[@]}\"";
  }
  return words;
}

std::string environment_text(const std::vector<ExportedVariable>& variables) {
  std::string text;
  for (const ExportedVariable& variable : variables) {
    text += "export " + variable.name + "=" + shell_word(variable.value);
    text += (variable.comment.empty() ? "" : "  # " + variable.comment) + "\n";
  }
  return text;
}

std::string opening_comment(const ExportRequest& request, const std::string& what) {
  const FrameworkProfile& profile = request.job().profile;
  std::string text =
      wrapped_comment(what + " " + profile.version + ", written by " + kVersionText + " for", "");
  text += wrapped_comment("  " + request.command, "    ");
  text += wrapped_comment(prediction_sentence(request), "");
  return text + wrapped_comment(
                    "What is marked \"assumed\" nobody asked for; behind \"without\" stands "
                    "what the run takes more if it is left out.",
                    "");
}

std::string script_opening(const ExportRequest& request, const std::string& what) {
  return "#!/bin/bash\n" + opening_comment(request, what) +
         "set -euo pipefail\ncd \"$(dirname \"${BASH_SOURCE[0]}\")\"\n\n";
}

std::string geometry_text(const ClusterSpec& cluster) {
  return "NNODES=" + std::to_string(cluster.nodes) +
         "\nGPUS_PER_NODE=" + std::to_string(cluster.gpus_per_node) + "\n" + place_text();
}

std::string place_text() {
  return "NODE_RANK=\"${NODE_RANK:-0}\"  # of this node\n"
         "MASTER_ADDR=\"${MASTER_ADDR:-localhost}\"  # of node 0\n"
         "MASTER_PORT=\"${MASTER_PORT:-29500}\"\n";
}

std::string torchrun_text() {
  return "torchrun \\\n"
         "  --nnodes \"$NNODES\" --nproc-per-node \"$GPUS_PER_NODE\" --node-rank \"$NODE_RANK\" "
         "\\\n"
         "  --master-addr \"$MASTER_ADDR\" --master-port \"$MASTER_PORT\" \\\n";
}

ExportedFile slurm_file(const ExportRequest& request) {
  const ClusterSpec& cluster = request.job().cluster;
  std::string text = "#!/bin/bash\n#SBATCH --job-name=shardplan\n#SBATCH --nodes=" +
                     std::to_string(cluster.nodes) +
                     "\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=" +
                     std::to_string(cluster.gpus_per_node) + "\n#SBATCH --exclusive\n";
  text += "# launch.sh on every node. TODO: partition, account and time limit of your cluster.\n";
  text +=
      "set -euo pipefail\ncd \"$SLURM_SUBMIT_DIR\"\n\n"
      "MASTER_ADDR=\"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\"\n"
      "export MASTER_ADDR\n"
      "# shellcheck disable=SC2016  # the rank is each node's own\n"
      "srun bash -c 'NODE_RANK=\"$SLURM_NODEID\" exec bash launch.sh'\n";
  return {.name = "slurm.sbatch", .text = text, .is_program = true};
}

}  // namespace shardplan
