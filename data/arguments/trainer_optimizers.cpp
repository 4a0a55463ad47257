#include "data/arguments/trainer_optimizers.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/trainer_kernels.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMostRank = 65'536;
constexpr std::int64_t kMostLayers = 4096;

// axolotl-contribs-mit 0.0.6 muon/muon.py, muon/dist_muon.py.
constexpr const char* kCompiledMuon =
    "optimizer muon: axolotl's, whose iterations PyTorch's compiler makes kernels of, and no "
    "source "
    "says what they keep; Muon of LLaMA-Factory, ms-swift and PyTorch is described";

// A setting whose words other than `described` are refused.
void check_word(const TrainerFile& trainer, RunReading& run, const char* name,
                const std::string& described) {
  const std::string word = trainer.arguments.text_or(name, described);
  if (word != described) {
    refuse(run, shown_setting(trainer.arguments, name) + ": " + described + " is described");
  }
}

std::string optimizer_word(const TrainerFile& trainer) {
  return trainer.arguments.text_or("optim", "");
}

// train/trainer_utils.py _create_galore_optimizer, _create_apollo_optimizer: adamw_torch, GaLore's
// AdamW of 8 bits and Adafactor, and no other word. A silent run has transformers' default, which
// is adamw_torch up to PyTorch 2.7 and adamw_torch_fused from 2.8 on (training_args.py).
void check_factory_optim(const TrainerFile& trainer, RunReading& run, const char* name) {
  const std::string word = optimizer_word(trainer);
  if (word.empty()) {
    run.notes.push_back(trainer.file + ": optim: found nothing, took adamw_torch; " + name +
                        " does not start with adamw_torch_fused, transformers' default from "
                        "PyTorch 2.8 on, and optim: adamw_torch does");
  } else if (word != "adamw_torch") {
    constexpr std::array<std::string_view, 4> kOthers = {"adamw_bnb_8bit", "adamw_8bit",
                                                         "paged_adamw_8bit", "adafactor"};
    const bool starts =
        std::string_view(name) == "use_galore" && std::ranges::find(kOthers, word) != kOthers.end();
    refuse(run, std::string(name) + " with " + shown_setting(trainer.arguments, "optim") +
                    (starts ? ": moments of 8 bits, or rows and columns, of projected gradients; "
                              "optim adamw_torch is described"
                            : ": LLaMA-Factory does not start; optim adamw_torch is described"));
  }
}

void read_factory_projection(const TrainerFile& trainer, RunReading& run, OptimizerKind kind) {
  const bool is_galore = kind == OptimizerKind::kGaLore;
  run.job.optimizer = kind;
  check_factory_optim(trainer, run, is_galore ? "use_galore" : "use_apollo");
  check_word(trainer, run, is_galore ? "galore_proj_type" : "apollo_proj_type", "std");
  check_word(trainer, run, is_galore ? "galore_target" : "apollo_target", "all");
  if (!is_galore) {
    check_word(trainer, run, "apollo_proj", "random");
    check_word(trainer, run, "apollo_scale_type", "channel");
  }
}

// Sparse gradients are those of BAdam's other way, by a share of each parameter.
void read_badam(const TrainerFile& trainer, RunReading& run) {
  run.job.optimizer = OptimizerKind::kBAdam;
  check_word(trainer, run, "badam_mode", "layer");
  const std::string mode = trainer.arguments.text_or("badam_switch_mode", "ascending");
  if (mode == "fixed" && !trainer.arguments.has("badam_start_block")) {
    refuse(run,
           "badam_switch_mode fixed without badam_start_block: BAdam does not start; with it the "
           "run is described");
  }
  const std::string word = optimizer_word(trainer);
  if (!word.empty() && word != "adamw_torch_fused") {
    refuse(run, "use_badam with " + shown_setting(trainer.arguments, "optim") +
                    ": adamw_torch_fused is described");
  }
  if (mode != "fixed") {
    run.notes.push_back(trainer.file +
                        ": use_badam: took the steps that train the first layer, which hold most: "
                        "all layers above it keep what its gradients need");
  }
}

// In the order of create_custom_optimizer.
bool read_factory(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  if (is_on(arguments, "use_galore")) {
    read_factory_projection(trainer, run, OptimizerKind::kGaLore);
  } else if (is_on(arguments, "use_apollo")) {
    read_factory_projection(trainer, run, OptimizerKind::kApollo);
  } else if (is_on(arguments, "use_badam")) {
    read_badam(trainer, run);
  } else if (is_on(arguments, "use_adam_mini")) {
    run.job.optimizer = OptimizerKind::kAdamMini;
  } else {
    return false;
  }
  return true;
}

// swift/optimizers/galore/utils.py get_optimizer, GaloreOptimizerCallback.
void read_swift_galore(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  run.job.optimizer = OptimizerKind::kGaLore;
  check_word(trainer, run, "galore_proj_type", "std");
  if (is_on(arguments, "galore_quantization")) {
    refuse(run,
           "galore_quantization true: Q-GaLore 1.0 calls bitsandbytes' kernels as 0.40 had them, "
           "which those of 0.49 and later refuse; use_galore without it is described");
  }
  if (arguments.has("galore_target_modules") || is_on(arguments, "galore_with_embedding")) {
    refuse(run, std::string(arguments.has("galore_target_modules") ? "galore_target_modules"
                                                                   : "galore_with_embedding") +
                    ": gradients of all linear layers of layers are described, ms-swift's default");
  }
  const std::string word = optimizer_word(trainer);
  if (!word.empty() && word != "adamw_torch" && word != "adamw_torch_fused" && word != "adamw_hf") {
    refuse(run, "use_galore with " + shown_setting(arguments, "optim") +
                    ": adamw_torch and adamw_torch_fused are described");
  }
}

// swift/optimizers/muonclip.py, MuonClipOptimizerCallback.
void read_muonclip(const TrainerFile& trainer, RunReading& run) {
  run.job.optimizer = OptimizerKind::kMuonClip;
  if (uses_flash_attention(trainer.arguments)) {
    refuse(
        run,
        "optimizer muonclip with FlashAttention, whose inputs its norms do not see; attention of "
        "PyTorch is described, attn_impl sdpa");
  }
  std::string words = in_lower_case(trainer.arguments.text_or("optim_args", ""));
  std::erase(words, ' ');
  if (words.find("nesterov=true") != std::string::npos ||
      words.find("qk_clip_enabled=false") != std::string::npos) {
    refuse(run, "optimizer muonclip with " + shown_setting(trainer.arguments, "optim_args") +
                    ": that without Nesterov's momentum and with its bound is described");
  }
}

bool read_swift(const TrainerFile& trainer, RunReading& run) {
  if (trainer.arguments.text_or("optimizer", "") == "muonclip") {
    read_muonclip(trainer, run);
  } else if (is_on(trainer.arguments, "use_galore")) {
    read_swift_galore(trainer, run);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool read_program_optimizer(const TrainerFile& trainer, RunReading& run) {
  switch (trainer.defaults.project) {
    case TrainerProject::kFactory: return read_factory(trainer, run);
    case TrainerProject::kSwift: return read_swift(trainer, run);
    case TrainerProject::kAxolotl:
      if (trainer.arguments.text_or("optimizer", "") == "muon") {
        refuse(run, kCompiledMuon);
        return true;
      }
      break;
    default: break;
  }
  const char* const on =
      first_on(trainer.arguments, {"use_galore", "use_apollo", "use_badam", "use_adam_mini"});
  if (on != nullptr) {
    refuse(run, std::string(on) + " true: an optimizer of LLaMA-Factory's or ms-swift's own");
  }
  return on != nullptr;
}

// Ranks: LLaMA-Factory ff6d4d1 hparams/finetuning_args.py; ms-swift 3602360
// swift/trainers/arguments.py.
void take_program_optimizer(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  const bool is_galore = run.job.optimizer == OptimizerKind::kGaLore;
  if (!is_galore && run.job.optimizer != OptimizerKind::kApollo) {
    return;
  }
  const bool is_factory = trainer.defaults.project == TrainerProject::kFactory;
  const std::int64_t rank = arguments.integer_or(is_galore ? "galore_rank" : "apollo_rank",
                                                 is_factory ? 16 : 128, 1, kMostRank);
  want(run, "projection_rank", std::to_string(rank), library);
  if (is_factory) {
    const bool is_layerwise = is_on(arguments, is_galore ? "galore_layerwise" : "apollo_layerwise");
    want(run, "optimizer_steps", is_layerwise ? "in_backward" : "together", library);
  } else {
    want(run, "optimizer_steps",
         is_on(arguments, "galore_optim_per_parameter") ? "one_by_one" : "matrices_first", library);
  }
}

bool trains_blocks(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kFactory &&
         is_on(trainer.arguments, "use_badam");
}

std::int64_t fullest_block(const TrainerFile& trainer) {
  const bool is_fixed = trainer.arguments.text_or("badam_switch_mode", "ascending") == "fixed";
  return is_fixed ? trainer.arguments.integer_or("badam_start_block", 0, 0, kMostLayers) : 0;
}

}  // namespace shardplan
