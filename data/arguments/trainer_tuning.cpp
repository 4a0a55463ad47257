#include "data/arguments/trainer_tuning.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/trainer_kernels.h"
#include "data/arguments/trainer_optimizers.h"
#include "data/arguments/trainer_parts.h"
#include "data/arguments/trainer_quantized.h"
#include "data/arguments/trainer_targets.h"
#include "data/read/case_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

// The setting that says how a model is tuned, and its word in the project's own language.
struct Method {
  const char* setting = "";
  std::string word;         // "full", "lora" or another
  bool is_default = false;  // nothing says it
};
Method method_of(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  const auto word_of = [&](const char* name, const char* fallback) {
    return Method{.setting = name,
                  .word = arguments.text_or(name, fallback),
                  .is_default = !arguments.has(name)};
  };
  switch (trainer.defaults.project) {
    case TrainerProject::kFactory: return word_of("finetuning_type", "lora");
    case TrainerProject::kFactoryV1: return word_of("peft_config.name", "full");
    case TrainerProject::kAxolotl: return word_of("adapter", "full");
    case TrainerProject::kSwift:
      return word_of(arguments.has("train_type") ? "train_type" : "tuner_type", "lora");
    default: break;
  }
  const char* const on = first_on(arguments, {"use_peft", "use_lora", "lora_enable", "use_qlora"});
  return on == nullptr ? Method{.setting = "use_peft", .word = "full", .is_default = true}
                       : Method{.setting = on, .word = "lora"};
}

bool is_lora(const Method& method) {
  return method.word == "lora" || method.word == "qlora";
}

// ms-swift's other tuners (swift/pipelines/train/tuner.py prepare_adapter).
bool is_of_swift(const Method& method) {
  const std::string_view setting = method.setting;
  return setting == "tuner_type" || setting == "train_type";
}
bool is_adalora(const Method& method) {
  return method.word == "adalora" && is_of_swift(method);
}
bool is_bottleneck(const Method& method) {
  return method.word == "adapter" && is_of_swift(method);
}
bool is_llama_pro(const Method& method) {
  return method.word == "llamapro" && is_of_swift(method);
}

// Why one of them is not described, "": it is no such word.
std::string_view why_no_tuner(const Method& method) {
  struct Reason {
    std::string_view word, reason;
  };
  constexpr std::array kReasons = std::to_array<Reason>({
      {"bone",
       "peft has no BoneConfig from 0.19 on, of which ms-swift installs 0.20: it does not start"},
      {"longlora",
       "its attention asks for num_heads, which LlamaAttention of transformers 4.48 and later has "
       "not: the first forward pass fails"},
      {"boft",
       "rotations by butterflies, which peft multiplies by a kernel that it compiles as it starts"},
      {"reft", "interventions behind layers by pyreft, which is not described"},
  });
  const auto* const found = std::ranges::find(kReasons, method.word, &Reason::word);
  return found == kReasons.end() || !is_of_swift(method) ? "" : found->reason;
}

// LLaMA-Factory's word alone.
bool is_oft(const Method& method) {
  return method.word == "oft" && std::string_view(method.setting) == "finetuning_type";
}

// LLaMA-Factory, axolotl and ms-swift list linear layers by name; what else says all-linear gives
// peft the word.
bool gives_peft_the_word(TrainerProject project) {
  return project == TrainerProject::kTrl || project == TrainerProject::kTransformers;
}

// The modules that have adapters.
void read_targets(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  Adapters& adapters = run.job.adapters;
  const char* const setting =
      first_set(arguments, {"target_regex", "lora_target", "lora_target_modules", "target_modules",
                            "peft_config.target_modules"});
  std::string words = setting == nullptr ? "" : arguments.text_or(setting, "");
  std::erase(words, '_');
  std::erase(words, '-');
  const std::vector<std::string> joined_words = names_in(words);
  const bool names_all = std::ranges::any_of(
      joined_words, [](const std::string& word) { return word == "all" || word == "alllinear"; });
  if (is_on(arguments, "lora_target_linear") || names_all ||
      (setting == nullptr && trainer.defaults.targets_all)) {
    set_targets(adapters, setting != nullptr && gives_peft_the_word(trainer.defaults.project)
                              ? all_linear_targets()
                              : all_targets());
    if (setting != nullptr && !names_all) {  // names beside the list of linear layers
      adapters.expert_targets = targets_named(names_in(arguments.text_or(setting, ""))).experts;
    }
    if (run.job.model.family == "llama4_text") {
      run.notes.push_back(trainer.file +
                          ": adapters on all linear layers: Llama 4's router is one that gives two "
                          "tensors, and peft 0.21 stops at its first pass; took a run that leaves "
                          "it out, as ms-swift's target_regex can");
    }
    return;
  }
  if (setting != nullptr && read_target_pattern(setting, arguments.text_or(setting, ""), run)) {
    return;
  }
  read_named_targets(arguments, setting, run);
}

void read_trained_modules(const TrainerFile& trainer, RunReading& run) {
  const char* const setting =
      first_set(trainer.arguments, {"additional_target", "lora_modules_to_save", "modules_to_save",
                                    "peft_config.modules_to_save"});
  if (setting == nullptr) {
    return;
  }
  for (const std::string& name : names_in(trainer.arguments.text_or(setting, ""))) {
    if (name == "embed_tokens") {
      run.job.adapters.trains_table = true;
    } else if (name == "lm_head") {
      run.job.adapters.trains_head = true;
    } else {
      refuse(run, std::string(setting) + " " + shown(name, Encoding::kUnchecked) +
                      ": embed_tokens and lm_head are described");
    }
  }
}

// peft's adapters are fp32 beside a base of 16 bits; TRL has them in bf16 beside a quantized one
// (sft_trainer.py, SFTTrainer.__init__), ms-swift in what lora_dtype says.
DType adapter_type(const TrainerFile& trainer, const QuantizedWeights& quantized) {
  const RunArguments& arguments = trainer.arguments;
  const std::string word = arguments.text_or("lora_dtype", "");
  const bool is_trl_on_quantized =
      trainer.defaults.project == TrainerProject::kTrl && quantized.kind != Quantization::kNone;
  if (word == "bfloat16" || is_trl_on_quantized ||
      arguments.text_or("peft_autocast_adapter_dtype", "true") == "false") {
    return DType::kBf16;
  }
  return word == "float16" ? DType::kFp16 : DType::kFp32;
}

// LoftQ's frozen weights are rounded ones in their own type (peft 0.21 utils/loftq_utils.py
// loftq_init); ReLoRA's adapters are merged into the weights between steps (axolotl 067b021
// monkeypatch/relora.py ReLoRACallback).
void note_starts(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  const auto add = [&](const char* name, const char* taken) {
    run.notes.emplace_back(
        arguments
            .error(name, "found " + shown(arguments.text_or(name, ""), Encoding::kUnchecked) +
                             ", took " + taken)
            .what());
  };
  if (arguments.has("peft.loftq_config.loftq_bits")) {
    add("peft.loftq_config.loftq_bits",
        "the memory of LoRA: LoftQ's frozen weights keep their own type; the peak while they are "
        "rounded is not counted");
  }
  if (is_on(arguments, "relora")) {
    add("relora", "the memory of LoRA; the merges in between are not counted");
  }
  // ms-swift 3602360 swift/pipelines/train/tuner.py, get_lora_ga_model.
  if (arguments.text_or("init_weights", "") == "lora-ga") {
    add("init_weights",
        "the memory of LoRA; LoRA-GA's gradients of all weights before it are not counted");
  }
}

// LLaMA-Factory ff6d4d1 hparams/finetuning_args.py, model/adapter.py: blocks of a size, unless
// oft_rank says their number.
void read_rotations(const TrainerFile& trainer, RunReading& run) {
  constexpr std::int64_t kBlock = 32;
  const RunArguments& arguments = trainer.arguments;
  Adapters& adapters = run.job.adapters;
  adapters.kind = AdapterKind::kOft;
  adapters.rank = arguments.integer_or("oft_block_size", kBlock, 0, kMaxRank);
  if (adapters.rank == 0 || arguments.integer_or("oft_rank", 0, 0, kMaxRank) > 0) {
    refuse(run, "finetuning_type oft with oft_rank: blocks of oft_block_size are described");
  }
  if (arguments.number_or("module_dropout", 0, 0, 1) > 0) {
    refuse(run, shown_setting(arguments, "module_dropout") +
                    ": rotations without dropout are described");
  }
  const std::string targets = arguments.text_or("oft_target", "all");
  const Targets named = targets == "all" ? all_targets() : targets_named(names_in(targets));
  if (!named.wrong.empty()) {
    refuse(run, shown_setting(arguments, "oft_target") +
                    ": rotations in front of the linear layers of Llama, Mistral and Qwen are "
                    "described, q_proj to down_proj by name");
  }
  set_targets(adapters, named);
  read_trained_modules(trainer, run);
}

// swift/tuners/adapter.py: behind every FFN of the text model, by gelu.
void read_bottleneck(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  Adapters& adapters = run.job.adapters;
  adapters.kind = AdapterKind::kBottleneck;
  adapters.rank = arguments.integer_or("adapter_length", 128, 1, kMaxRank);
  adapters.targets[static_cast<std::size_t>(LinearLayer::kDown)] = true;
  if (arguments.text_or("adapter_act", "gelu") != "gelu") {
    refuse(run, shown_setting(arguments, "adapter_act") + ": gelu is described");
  }
}

void read_adapters(const TrainerFile& trainer, RunReading& run) {
  const Method method = method_of(trainer);
  if (method.word == "full" || trains_named_layers(trainer)) {
    if (is_on(trainer.arguments, "relora")) {
      refuse(run,
             "relora true without adapters, which it merges: adapter lora and qlora are "
             "described");
    }
    return;
  }
  if (is_oft(method)) {
    return read_rotations(trainer, run);
  }
  if (is_bottleneck(method)) {
    return read_bottleneck(trainer, run);
  }
  if (is_llama_pro(method)) {
    return;  // whose layers are read by name
  }
  if (!is_lora(method) && !is_adalora(method)) {
    const std::string_view why = why_no_tuner(method);
    refuse(run, std::string(method.setting) + " " + shown(method.word, Encoding::kUnchecked) +
                    ": " + (why.empty() ? "" : std::string(why) + "; ") +
                    "full and lora are described");
    return;
  }
  const RunArguments& arguments = trainer.arguments;
  Adapters& adapters = run.job.adapters;
  adapters.kind = is_adalora(method) ? AdapterKind::kAdaLora : AdapterKind::kLora;
  const char* const rank = first_set(arguments, {"lora_rank", "lora_r", "peft_config.r"});
  adapters.rank = is_adalora(method) ? arguments.integer_or("adalora_init_r", 12, 1, kMaxRank)
                  : rank == nullptr  ? trainer.defaults.lora_rank
                                     : arguments.integer_or(rank, 0, 1, kMaxRank);
  const char* const dropout =
      arguments.has("peft_config.lora_dropout") ? "peft_config.lora_dropout" : "lora_dropout";
  adapters.dropout = arguments.number_or(dropout, trainer.defaults.lora_dropout, 0, 1);
  adapters.decomposes_weights =
      first_on(arguments, {"use_dora", "peft_use_dora", "peft_config.use_dora"}) != nullptr;
  read_targets(trainer, run);
  read_trained_modules(trainer, run);
  note_starts(trainer, run);
}

const char* type_setting(const RunArguments& arguments) {
  return first_set(arguments, {"dtype", "torch_dtype", "model_init_kwargs.dtype",
                               "model_init_kwargs.torch_dtype"});
}

DType type_named(const RunArguments& arguments, const char* setting) {
  const std::string word = arguments.text_or(setting, "");
  const std::string bare = word.starts_with("torch.") ? word.substr(6) : word;
  return bare == "float32" || bare == "fp32"   ? DType::kFp32
         : bare == "float16" || bare == "fp16" ? DType::kFp16
                                               : DType::kBf16;
}

// axolotl loaders/model.py, _configure_embedding_dtypes: norms, embedding and head become fp32, and
// the weights' type again where adapters, Cut Cross Entropy or FlashAttention want it.
bool has_wide_ends(const TrainerFile& trainer, const TrainerTypes& types, bool is_sharded) {
  const RunArguments& arguments = trainer.arguments;
  const std::string attention = arguments.text_or("attn_implementation", "sdpa");
  const bool is_plain =
      (attention == "sdpa" || attention == "eager") && !uses_flash_attention(arguments);
  return trainer.defaults.project == TrainerProject::kAxolotl && types.weights != DType::kFp32 &&
         !is_sharded && is_plain && !trains_adapters(trainer) &&
         loss_of(trainer).kind != "cut_cross_entropy";
}

// Whether weights that are trained become fp32 (LLaMA-Factory model/adapter.py, init_adapter).
bool widens_trained(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kFactory && !trains_adapters(trainer) &&
         !is_on(trainer.arguments, "pure_bf16") && !trains_blocks(trainer);
}

// accelerate's word counts where the trainer says neither.
void read_mixed(const TrainerFile& trainer, TrainerTypes& types) {
  const RunArguments& arguments = trainer.arguments;
  const auto says = [&](const char* name) {
    return is_on(arguments, name) || arguments.text_or(name, "") == "auto";
  };
  const std::string launcher = arguments.text_or("accelerate.mixed_precision", "no");
  const bool is_half = says("fp16") || (!arguments.has("bf16") && launcher == "fp16");
  const bool is_bf16 = says("bf16") || (!arguments.has("bf16") && !is_half &&
                                        (trainer.defaults.is_bf16 || launcher == "bf16"));
  types.precision = is_bf16 ? Precision::kBf16 : is_half ? Precision::kFp16 : Precision::kFp32;
  types.autocast = is_bf16 || is_half;
  for (const auto& [name, precision] :
       {std::pair{"bfloat16", Precision::kBf16}, std::pair{"pure_bf16", Precision::kBf16},
        std::pair{"float16", Precision::kFp16}}) {
    if (is_on(arguments, name)) {
      types.precision = precision;
      types.autocast = false;
    }
  }
}

}  // namespace

bool trains_adapters(const TrainerFile& trainer) {
  const Method method = method_of(trainer);
  return is_lora(method) || is_oft(method) || is_adalora(method) || is_bottleneck(method);
}

std::string tuner_word(const TrainerFile& trainer) {
  return method_of(trainer).word;
}

void read_tuning(const TrainerFile& trainer, RunReading& run) {
  run.job.adapters = {};
  run.job.quantized = {};
  read_adapters(trainer, run);
  read_quantized(trainer, run);
  if (run.job.adapters.rank > 0) {
    const bool is_wide = run.job.adapters.kind == AdapterKind::kAdaLora ||
                         run.job.adapters.kind == AdapterKind::kBottleneck;
    run.job.adapters.dtype =
        is_wide ? DType::kFp32
                : adapter_type(trainer, run.job.quantized);  // whatever lora_dtype is
  }
}

namespace {

// Whole models become fp32; products are in bf16 where FSDP2 gathers in it, else in the type of the
// weights (LLaMA-Factory ff6d4d1 src/llamafactory/v1/core/model_engine.py _init_model).
TrainerTypes types_of_version_1(const TrainerFile& trainer, bool is_sharded) {
  TrainerTypes types;
  types.weights = trains_adapters(trainer) ? DType::kBf16 : DType::kFp32;
  const bool gathers_bf16 = is_sharded && trainer.arguments.text_or("bf16", "true") != "false";
  types.precision = gathers_bf16 || (!is_sharded && types.weights == DType::kBf16)
                        ? Precision::kBf16
                        : Precision::kFp32;
  return types;
}

}  // namespace

TrainerTypes types_of(const TrainerFile& trainer, bool is_sharded) {
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    return types_of_version_1(trainer, is_sharded);
  }
  const RunArguments& arguments = trainer.arguments;
  TrainerTypes types;
  read_mixed(trainer, types);
  const char* const setting = type_setting(arguments);
  const DType compute = types.precision == Precision::kBf16   ? DType::kBf16
                        : types.precision == Precision::kFp16 ? DType::kFp16
                                                              : DType::kFp32;
  if (widens_trained(trainer)) {
    types.weights = DType::kFp32;
  } else if (setting != nullptr) {
    types.weights = type_named(arguments, setting);
  } else if (trainer.defaults.project == TrainerProject::kTrl) {
    types.weights = DType::kFp32;  // trainer/model_config.py; utils.create_model_from_path
  } else if (trainer.defaults.project == TrainerProject::kAxolotl) {
    types.weights = compute;  // utils/config, resolve_dtype
  } else {
    types.weights = DType::kBf16;
    if (trainer.defaults.project == TrainerProject::kTransformers) {
      types.because =
          trainer.file +
          ": the type of the weights: found nothing, took bf16, that of the checkpoint, as "
          "from_pretrained of transformers 5 has it; --set weights_dtype=fp32 is that up to 4.57";
    }
  }
  if (types.precision == Precision::kFp32 && types.weights == DType::kBf16) {
    types.precision = Precision::kBf16;  // products in the weights' own type
  }
  types.wide_ends = has_wide_ends(trainer, types, is_sharded);
  return types;
}

}  // namespace shardplan
