#include "tools/export/export.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"
#include "data/models/fields.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/export/folder.h"
#include "tools/export/megatron.h"
#include "tools/export/own_file.h"
#include "tools/export/read_back.h"
#include "tools/export/script.h"
#include "tools/export/torchtitan.h"
#include "tools/export/trainer.h"
#include "tools/options/command_words.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

// Switches of profiles that say which library is there, or what is assumed of data: no file of a
// framework does.
constexpr auto kFacts = std::to_array<std::string_view>(
    {"convolution_kernels", "cp_overlap", "cross_entropy_bytes_per_logit",
     "deallocate_pipeline_outputs", "deterministic_attention", "dummy_weight_gradients",
     "eager_communicators", "fsdp_ends", "fsdp_upcast", "fsdp_whole_moments", "liger_kernel",
     "mixer_kernels", "moe_imbalance_factor", "moe_load_spread", "moe_permute_scans_experts",
     "moe_router_casts", "persistent_elements", "root_holds_ends", "scatter_gather_sends"});

// Megatron-LM takes FusedAdam of Transformer Engine or APEX where one is installed, else PyTorch's
// AdamW: core/optimizer/__init__.py. Elsewhere an option says which. Kernels of the Hub are asked
// for (use_kernels).
bool is_fact(const std::string& name, const FrameworkProfile& profile) {
  if (name == "liger_kernel" && profile.liger_kernel == LigerKernel::kNorms) {
    return false;
  }
  return std::ranges::find(kFacts, name) != kFacts.end() ||
         (profile.name == "megatron" && name == "fused_optimizer");
}

// Those that differ from what the files lead to: the profile's own, or what a user's file says.
std::vector<std::string> facts_of(const ExportRequest& request, const FrameworkProfile& own) {
  const FrameworkProfile& profile = request.job().profile;
  std::vector<std::string> facts;
  for (const ProfileOption& option :
       profile_options(request.library, request.library.key_of(profile))) {
    const std::string value = profile_field_text(profile, option.name);
    if (is_fact(option.name, profile) && value != profile_field_text(own, option.name)) {
      facts.push_back(option.name + "=" + value);
    }
  }
  return facts;
}

std::string reading_command(const ExportedRun& run, const std::string& folder) {
  std::string command = "shardplan estimate --from " + shell_word(folder + "/" + run.launch);
  for (const auto& [name, words] : run.beside.values) {
    for (const std::string& word : words) { command += " --" + name + " " + shell_word(word); }
  }
  for (const std::string& fact : run.facts) { command += " --framework-option " + fact; }
  return command;
}

// Which model's config.json it is: the user's, or the shipped one that a run's file names; "" where
// the run has sizes of its own.
std::string model_name(const Options& options, const Question& question, const Library& library) {
  if (given(options, "model")) {
    return text_or(options, "model", "");
  }
  const std::vector<std::string> shipped = library.model_names();
  const std::string& name = question.job.model.name;
  return std::ranges::find(shipped, name) == shipped.end() ? "" : name;
}

std::vector<std::string> names_of_files(const ExportedRun& run) {
  std::vector<std::string> names;
  names.reserve(run.files.size());
  for (const ExportedFile& file : run.files) { names.push_back(file.name); }
  return names;
}

// One framework's way to write a plan down.
struct Writer {
  MemoryModel framework;
  std::vector<ExportedFile> (*files)(const ExportRequest& request);
};
constexpr std::array kWriters = std::to_array<Writer>({
    {.framework = MemoryModel::kMegatron, .files = megatron_files},
    {.framework = MemoryModel::kTransformers, .files = accelerate_files},
    {.framework = MemoryModel::kDeepspeed, .files = deepspeed_files},
    {.framework = MemoryModel::kTorchtitan, .files = torchtitan_files},
});

// Files of the project's own making.
ExportedRun new_run(const ExportRequest& request, const Options& options) {
  const FrameworkProfile& profile = request.job().profile;
  std::vector<std::string> names;
  for (const Writer& writer : kWriters) {
    if (writer.framework == profile.memory_model) {
      const FrameworkProfile own = request.library.framework(request.library.key_of(profile));
      return {.files = writer.files(request),
              .facts = facts_of(request, own),
              .beside = options_beside_files(options)};
    }
    names.emplace_back(name_of(writer.framework));
  }
  throw InputError("--export: found framework " + profile.name + ", expected " + joined(names));
}

ExportedRun own_run(const ExportRequest& request, const Options& options) {
  Options beside = options_beside_own_file(request, options);
  const Question before = question_as_it_is(request, beside);
  std::vector<ExportedFile> files = own_files(request, before);
  const std::string own = files.front().name;
  return {.files = std::move(files),
          .launch = own,
          .facts = facts_of(request, before.job.profile),
          .beside = std::move(beside)};
}

// Of a refusal what stands between its framework and its end.
std::string reason_of(const std::string& refusal) {
  constexpr std::string_view kOpening = "this plan: ";
  constexpr std::string_view kEnd = "; nothing is written";
  const std::size_t at = refusal.find(kOpening);
  const std::size_t begin = at == std::string::npos ? 0 : at + kOpening.size();
  const std::size_t end = refusal.ends_with(kEnd) ? refusal.size() - kEnd.size() : refusal.size();
  return refusal.substr(begin, end - begin);
}

// What of the plan the user's edited file does not say; "" where it says all.
std::string why_not_said(const ExportRequest& request, const ExportedRun& run) {
  StagedFolder tried(std::filesystem::temp_directory_path() / ".shardplan-export");
  for (const ExportedFile& file : run.files) { tried.write(file); }
  try {
    require_read_back(request, run.beside, tried.path() + "/" + run.launch, run.facts);
  } catch (const InputError& refusal) { return refusal.what(); }
  return "";
}

}  // namespace

ExportedModel exported_model(const Options& options, const Question& question,
                             const Library& library) {
  const std::string name = model_name(options, question, library);
  if (name.empty()) {
    return {};
  }
  ModelFile file = library.model_file(name);
  const std::vector<std::string> keys = model_field_names(file.config.json);
  bool is_changed = false;
  for (const std::string& word : all_of(options, "set")) {
    const std::size_t equals = std::min(word.find('='), word.size() - 1);
    const std::string key = word.substr(0, equals);
    if (std::ranges::find(keys, key) != keys.end()) {
      set_model_field(file.config.json, key, word.substr(equals + 1), "--set " + word);
      is_changed = true;
    }
  }
  const bool is_published = name.find('/') != std::string::npos && !name.ends_with(".json") &&
                            !library.published_model(name).empty();
  return {.published = is_published && !is_changed ? name : "",
          .config = std::move(file.config.json)};
}

ExportedRun exported_run(const ExportRequest& request, const Options& options) {
  if (!has_own_file(request)) {
    return new_run(request, options);
  }
  ExportedRun own = own_run(request, options);
  if (!may_have_new_files(request)) {
    return own;
  }
  std::string why = why_not_said(request, own);
  if (why.empty()) {
    return own;
  }
  ExportedRun run = new_run(request, options);
  if (!why_not_said(request, run).empty()) {
    return own;  // its refusal speaks of what the user has
  }
  run.note = request.question.run.value().file +
             " itself cannot say this plan, new files do: " + reason_of(why);
  return run;
}

ExportedRun write_run(const ExportRequest& request, const Options& options,
                      const std::string& folder) {
  StagedFolder staged(folder);
  ExportedRun run = exported_run(request, options);
  for (const ExportedFile& file : run.files) { staged.write(file); }
  require_read_back(request, run.beside, staged.path() + "/" + run.launch, run.facts);
  staged.commit();
  return run;
}

void export_answer(const Options& options, const Question& question, const std::string& command,
                   const Library& library) {
  if (!given(options, "export")) {
    return;
  }
  const std::string folder = text_or(options, "export", "");
  const Prediction prediction = predict_question(question, {});
  if (!prediction.has_numbers()) {
    print_message("--export: nothing is written, the plan is " +
                  std::string(name_of(prediction.status)));
    return;
  }
  const ExportedModel model = exported_model(options, question, library);
  const ExportRequest request = {.question = question,
                                 .prediction = prediction,
                                 .model = model,
                                 .library = library,
                                 .command = command};
  const ExportedRun run = write_run(request, options, folder);
  if (!run.note.empty()) {
    print_message(run.note);
  }
  print_message(folder + ": wrote " + joined(names_of_files(run)) +
                "; read back, they get this prediction: " + reading_command(run, folder));
}

}  // namespace shardplan
