#include "data/arguments/trainer_kernels.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/trainer_objective.h"
#include "data/arguments/trainer_parallel.h"
#include "data/arguments/trainer_targets.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::string_view kLiger = "LigerPlugin";
constexpr std::string_view kCutCrossEntropy = "CutCrossEntropyPlugin";
constexpr std::string_view kOfExperts = "KernelsPlugin";  // read_expert_kernels
constexpr std::string_view kDealtExperts = "ExpertParallelPlugin";
// A plugin that only writes logs (axolotl 067b021 integrations/swanlab).
constexpr std::string_view kLogs = "SwanLabPlugin";

// LLaMA-Factory ff6d4d1 extras/constants.py AttentionFunction; transformers 5.17
// modeling_utils.py; kernels from the Hub are FlashAttention's.
constexpr std::array<std::string_view, 9> kKeepsNoScores = {"auto",
                                                            "sdpa",
                                                            "fa2",
                                                            "flash_attn",
                                                            "fa3",
                                                            "flash_attention_2",
                                                            "flash_attention_3",
                                                            "flash_attention",
                                                            "true"};

// Kernels of LLaMA-Factory's version 1 (v1/plugins/model_plugins/kernels): auto are those of NPUs.
bool uses_liger_by_name(const TrainerFile& trainer) {
  return trainer.arguments.text_or("kernel_config.name", "").find("liger_kernel") !=
         std::string::npos;
}

void read_named_kernels(const TrainerFile& trainer, RunReading& run) {
  for (const std::string& name : names_in(trainer.arguments.text_or("kernel_config.name", ""))) {
    if (name != "auto" && name != "liger_kernel") {
      refuse(run, "kernel_config.name " + shown(name, Encoding::kUnchecked) +
                      ": auto and liger_kernel are described");
    }
  }
}

constexpr std::array<const char*, 4> kAttention = {"attn_impl", "attn_implementation", "flash_attn",
                                                   "model_init_kwargs.attn_implementation"};

// axolotl 067b021 utils/schemas/config.py, check_auto_enable_lora_kernels: on with adapters,
// unless one of them is said, weights have 8 bits or code is the model's own.
bool has_adapter_kernels(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  constexpr std::array<const char*, 4> kKernels = {"lora_mlp_kernel", "lora_qkv_kernel",
                                                   "lora_o_kernel", "lora_embedding_kernel"};
  const bool is_said =
      std::ranges::any_of(kKernels, [&](const char* name) { return arguments.has(name); });
  const bool is_own = trainer.defaults.project == TrainerProject::kAxolotl && !is_said &&
                      !arguments.has("rl") &&
                      first_on(arguments, {"load_in_8bit", "trust_remote_code"}) == nullptr;
  return is_own ||
         std::ranges::any_of(kKernels, [&](const char* name) { return is_on(arguments, name); });
}

// Falcon and GPT-J find the class of their attention by name, GPT-J has none for sdpa (transformers
// 5.17 models/falcon/modeling_falcon.py FALCON_ATTENTION_CLASSES, models/gptj/modeling_gptj.py
// GPTJ_ATTENTION_CLASSES).
bool stops_at(const ModelSpec& model, const std::string& word) {
  return (word == "xformers" && (model.family == "falcon" || model.family == "gptj")) ||
         (word == "sdpa" && model.family == "gptj");
}

// Embeddings have no adapters here.
bool has_all_adapter_kernels(const RunArguments& arguments) {
  return std::ranges::all_of(
      std::array<const char*, 3>{"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"},
      [&](const char* name) { return !arguments.has(name) || is_on(arguments, name); });
}

}  // namespace

bool uses_flash_attention(const RunArguments& arguments) {
  const bool is_named = std::ranges::any_of(kAttention, [&](const char* name) {
    const std::string word = arguments.text_or(name, "");
    return word == "fa2" || word == "fa3" || word.starts_with("flash") ||
           word.find("flash-attn") != std::string::npos;
  });
  return is_named || first_on(arguments, {"flash_attention", "use_flash_attn"}) != nullptr;
}

void read_kernels(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  for (const char* const name : kAttention) {
    const std::string word = arguments.text_or(name, "auto");
    const bool is_from_hub = word.find("flash-attn") != std::string::npos;
    // xformers' kernel keeps what FlashAttention does, of as many heads of keys as of queries.
    const bool is_memory_efficient =
        word == "xformers" && run.job.model.num_heads == run.job.model.num_kv_heads;
    if (stops_at(run.job.model, word)) {
      refuse(run, shown_setting(arguments, name) + ": " + run.job.model.family +
                      " has no class of attention of that name, and the run stops; without it "
                      "the run is described");
    } else if (std::ranges::find(kKeepsNoScores, word) == kKeepsNoScores.end() && !is_from_hub &&
               !is_memory_efficient) {
      refuse(run, shown_setting(arguments, name) +
                      ": attention that keeps its scores, or another kernel than PyTorch's and "
                      "FlashAttention's");
    }
  }
  read_named_kernels(trainer, run);
  for (const std::string& name : names_in(arguments.text_or("plugins", ""))) {
    if (!name.ends_with(kLiger) && !name.ends_with(kCutCrossEntropy) &&
        !name.ends_with(kOfExperts) && !name.ends_with(kDealtExperts) && !name.ends_with(kLogs)) {
      refuse(run, "plugins " + shown(name, Encoding::kUnchecked) +
                      ": Liger's, Cut Cross Entropy's and axolotl's kernels are described");
    }
  }
}

// Runs whose kernels of adapters are not described take peft's layers.
void read_adapter_kernels(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  if (is_on(arguments, "fused_attn_kernel") && run.job.model.qk_norm) {
    want(run, "fused_norm_rotary", "true", library);
  }
  if (run.job.adapters.rank == 0 || !has_adapter_kernels(trainer)) {
    return;
  }
  // Its classes with norms of values have patches of their own.
  const bool is_described = !run.job.model.family.starts_with("gemma4");
  const bool is_plain = is_described && run.plan.zero == 0 &&
                        !run.job.adapters.decomposes_weights &&
                        run.job.quantized.kind != Quantization::kInt8;
  if (is_plain && has_all_adapter_kernels(arguments) &&
      takes_word(run, "adapter_kernels", "true", library)) {
    want(run, "adapter_kernels", "true", library);
    return;
  }
  run.notes.push_back(trainer.file +
                      ": lora_mlp_kernel and its like: axolotl's own kernels of adapters run, "
                      "took peft's layers, which keep more");
}

void read_mixers(const TrainerFile& trainer, RunReading& run, const Library& library) {
  if (trainer.defaults.project != TrainerProject::kAxolotl ||
      run.job.model.family != "kimi_linear") {
    return;
  }
  want(run, "mixer_kernels", "true", library);
  want(run, "convolution_kernels", "true", library);
  run.notes.push_back(trainer.file +
                      ": axolotl's own class of Kimi Linear runs, whose recurrences and "
                      "convolutions are fla's; took transformers' class with fla and "
                      "causal_conv1d, whose experts are one tensor and stay floats");
}

// axolotl's plugin patches what its configuration says; of the third either name counts.
struct LigerParts {
  bool layers = false;     // norms, rotary embedding and FFN, as far as the class has them
  bool loss = false;       // the head with its loss
  bool is_a_part = false;  // of the layers' kernels some
};
LigerParts liger_parts(const RunArguments& arguments, const ModelSpec& model) {
  const bool norm = is_on(arguments, "liger_rms_norm");
  const bool ffn = first_on(arguments, {"liger_glu_activation", "liger_swiglu"}) != nullptr;
  // DeepSeek's rotary embedding has no kernel (integrations/liger/plugin.py).
  // Gemma 4's is left as it is (integrations/liger/plugin.py).
  const bool rotary = is_on(arguments, "liger_rope") ||
                      ((model.is_mla() || model.family.starts_with("gemma4")) && norm);
  return {.layers = norm && ffn && rotary,
          .loss = is_on(arguments, "liger_fused_linear_cross_entropy"),
          .is_a_part = (norm || ffn || rotary) && !(norm && ffn && rotary)};
}

// Liger's own experts stand in for Qwen3.5's where axolotl does not patch its classes (Liger 0.8.0
// transformers/monkey_patch.py apply_liger_kernel_to_qwen3_5_moe); axolotl's have no such experts,
// and a kernel of gated norms where it is asked for (067b021 integrations/liger/models/
// qwen3_5_moe.py).
void refuse_liger_classes(const TrainerFile& trainer, bool has_layers, RunReading& run) {
  const char* const gated = "liger_rms_norm_gated";
  const RunArguments& arguments = trainer.arguments;
  if (!run.job.model.family.starts_with("qwen3_5")) {
    return;
  }
  const bool is_own = trainer.defaults.project == TrainerProject::kAxolotl;
  if (!is_own && first_on(arguments, {"use_liger_kernel", "enable_liger_kernel"}) != nullptr) {
    refuse(run, "Liger's kernels of " + run.job.model.family +
                    ": axolotl's, whose classes have transformers' experts, are described");
  }
  if (is_own && has_layers && !is_on(arguments, gated)) {
    refuse(run, "a part of Liger's kernels: of Qwen3.5 liger_rms_norm is described with " +
                    std::string(gated));
  }
}

// Nobody says which release is installed; of those that transformers 4.57 takes most are earlier
// ones, which need more memory. axolotl and TRL install 0.8.0 (pyproject.toml).
void read_liger(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  const LigerParts parts = liger_parts(arguments, run.job.model);
  // DeepSpeed's profile has Liger's kernels and its loss together.
  const bool is_alone = parts.layers != parts.loss;
  if (parts.is_a_part || (is_alone && !parts.layers) ||
      (is_alone && !takes_word(run, "head_loss", "fused_linear", library))) {
    refuse(run,
           "a part of Liger's kernels: liger_rope, liger_rms_norm and liger_glu_activation are "
           "described together, with liger_fused_linear_cross_entropy or under transformers' "
           "Trainer without it");
  }
  refuse_liger_classes(trainer, parts.layers, run);
  const char* const name =
      uses_liger_by_name(trainer)
          ? "kernel_config.name"
          : first_on(arguments, {"use_liger_kernel", "enable_liger_kernel",
                                 "liger_fused_linear_cross_entropy", "liger_rms_norm"});
  if (name != nullptr) {
    want(run, "liger_kernel", "through_0.8.2", library);
    run.notes.emplace_back(
        arguments
            .error(name,
                   "found " + shown(arguments.text_or(name, ""), Encoding::kUnchecked) +
                       ", took Liger up to 0.8.2; --set liger_kernel=on is a later one, which "
                       "takes less memory")
            .what());
  }
}

namespace {

// Losses of tokens that the trainer takes of the logits and weights: a value of HeadLoss, "" for
// none.
std::string weighted_loss(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  switch (trainer.defaults.project) {
    case TrainerProject::kFactory:  // the first counts (train/sft/trainer.py)
      return is_on(arguments, "use_dft_loss")    ? "dft"
             : is_on(arguments, "use_eaft_loss") ? "eaft"
             : is_on(arguments, "use_asft_loss") ? "asft"
                                                 : "";
    case TrainerProject::kAxolotl: return is_on(arguments, "use_eaft") ? "eaft_of_rows" : "";
    case TrainerProject::kSwift: return is_on(arguments, "enable_dft_loss") ? "dft" : "";
    default: return "";
  }
}

}  // namespace

// axolotl's "auto", its default, is what the GPU can (067b021 utils/schemas/config.py, check_tf32);
// where no tensor core does it, none of its numbers change.
void read_products(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  const bool is_axolotl = trainer.defaults.project == TrainerProject::kAxolotl;
  const bool is_auto = is_axolotl && in_lower_case(arguments.text_or("tf32", "auto")) == "auto";
  if ((is_on(arguments, "tf32") || is_auto) && takes_word(run, "tf32", "true", library)) {
    want(run, "tf32", "true", library);
  }
}

LossWords loss_of(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  const std::string plugins = arguments.text_or("plugins", "");
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    return {.kind = "twice"};
  }
  // Liger's kernels without its loss (LLaMA-Factory model_utils/liger_kernel.py apply_liger_kernel,
  // require_logits; ms-swift hands its models no labels, swift/rlhf_trainers/rlhf_mixin.py), and
  // none of the losses of tokens.
  if (trainer.defaults.project != TrainerProject::kAxolotl && has_own_objective(trainer)) {
    return {};
  }
  // ms-swift's own loss (swift/trainers/seq2seq_trainer.py, compute_loss), and the Trainer's where
  // accelerate divides sequences (transformers 5.17 trainer.py, _deepspeed_sp_compute_loss).
  if (sequence_ranks(trainer) > 1) {
    return {.kind = "per_token"};
  }
  if (const std::string weighted = weighted_loss(trainer); !weighted.empty()) {
    return {.kind = weighted};
  }
  if (is_on(arguments, "cut_cross_entropy") ||
      plugins.find(kCutCrossEntropy) != std::string::npos) {
    return {.kind = "cut_cross_entropy"};
  }
  if (first_on(arguments, {"use_liger_kernel", "enable_liger_kernel",
                           "liger_fused_linear_cross_entropy"}) != nullptr) {
    return {.kind = "fused_linear"};
  }
  if (trainer.defaults.project != TrainerProject::kTrl) {
    return {};
  }
  const std::string word = arguments.text_or("loss_type", "chunked_nll");
  if (word == "chunked_nll") {
    return {
        .kind = "chunked",
        .because = arguments.has("loss_type")
                       ? ""
                       : trainer.file +
                             ": loss_type: found nothing, took chunked_nll, TRL's default since "
                             "June 2026; --set loss_type=nll says otherwise"};
  }
  return {.kind = word == "nll" ? "stock" : ""};
}

}  // namespace shardplan
