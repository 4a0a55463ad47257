#include "data/arguments/trainer_quantized.h"

#include <string>

#include "data/read/json_message.h"
#include "data/read/library.h"

namespace shardplan {
namespace {

constexpr const char* kClass = "model_quantization_config";
constexpr const char* kDequantizes = "model_quantization_config_kwargs.dequantize";

// Weights in fp8 and MXFP4 are no trained ones (transformers 5.17 quantizers/quantizer_mxfp4.py and
// quantizer_finegrained_fp8.py, is_trainable), unless they become bf16 as they are loaded, as MXFP4
// does for use_kernels on CUDA (_process_model_before_weight_loading).
void read_checkpoint(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  if (!arguments.has(kClass)) {
    return;
  }
  const std::string word = arguments.text_or(kClass, "");
  const bool is_mxfp4 = word == "Mxfp4Config";
  if (!is_mxfp4 && word != "FineGrainedFP8Config") {
    refuse(run, shown_setting(arguments, kClass) +
                    ": Mxfp4Config and FineGrainedFP8Config with dequantize are described");
    return;
  }
  if (!is_on(arguments, kDequantizes) && !(is_mxfp4 && is_on(arguments, "use_kernels"))) {
    refuse(run, shown_setting(arguments, kClass) + " without " + kDequantizes +
                    " true: transformers does not train such weights (is_trainable of its "
                    "quantizer); as bf16, which dequantize makes of them, they are described");
    return;
  }
  run.notes.emplace_back(
      arguments
          .error(kClass, "found " + shown(word, Encoding::kUnchecked) +
                             ", took weights of bf16, which the checkpoint's become as they are "
                             "loaded; the peak while they are loaded is not counted")
          .what());
}

// The model's name where that says that bitsandbytes has packed the checkpoint in 4 bits, else "".
std::string packed_model(const TrainerFile& trainer) {
  for (const char* const name : {"model_name_or_path", "base_model", "model"}) {
    std::string model = trainer.arguments.text_or(name, "");
    if (names_4bit_checkpoint(model)) {
      return model;
    }
  }
  return "";
}

// unsloth's checkpoints have quantized scales; of others the name does not say it.
void note_scales(const TrainerFile& trainer, const std::string& model, RunReading& run) {
  if (!in_lower_case(model).ends_with("-bnb-4bit")) {
    run.notes.push_back(trainer.file + ": model " + shown(model, Encoding::kUnchecked) +
                        ": took nf4 with quantized scales, whose names do not say them; scales in "
                        "fp32 take 0.05 bytes a weight more");
  }
}

// How many bits weights have as they are loaded, and the setting that says so; 0: they are not
// quantized.
struct Bits {
  std::int64_t count = 0;
  const char* setting = "";
};
Bits bits_of(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  if (const char* const four = first_on(arguments, {"load_in_4bit", "use_qlora"})) {
    return {.count = 4, .setting = four};
  }
  if (is_on(arguments, "load_in_8bit")) {
    return {.count = 8, .setting = "load_in_8bit"};
  }
  if (arguments.text_or("adapter", "") == "qlora") {
    return {.count = 4, .setting = "adapter"};
  }
  const char* const setting =
      first_set(arguments, {"quantization_bit", "quant_bits", "quant_config.quantization_bit"});
  // LLaMA-Factory's version 1 takes 4 where it is asked for bitsandbytes alone
  // (plugins/model_plugins/quantization.py, quantization_with_bnb).
  if (setting == nullptr && arguments.text_or("quant_config.name", "") == "bnb") {
    return {.count = 4, .setting = "quant_config.name"};
  }
  return setting == nullptr
             ? Bits{}
             : Bits{.count = arguments.integer_or(setting, 0, 0, 16), .setting = setting};
}

// 4 bits by bitsandbytes, loaded so.
QuantizedWeights four_bits(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  const char* const type = first_set(
      arguments, {"quantization_type", "bnb_4bit_quant_type",
                  "bnb_config_kwargs.bnb_4bit_quant_type", "quant_config.quantization_type"});
  const std::string word = type == nullptr ? "nf4" : arguments.word_or(type, "nf4", {"nf4", "fp4"});
  const char* const twice = first_set(
      arguments,
      {"double_quantization", "use_bnb_nested_quant", "bnb_4bit_use_double_quant",
       "bnb_config_kwargs.bnb_4bit_use_double_quant", "quant_config.double_quantization"});
  return {
      .kind = word == "nf4" ? Quantization::kNf4 : Quantization::kFp4,
      .is_double = twice == nullptr ? trainer.defaults.double_quantizes : is_on(arguments, twice)};
}

// axolotl 067b021 loaders/model.py, _set_quantization_config: it names modules that stay floats for
// these families, which takes transformers' own list, the head, out (quantizers/base.py
// get_modules_to_not_convert).
void spare_modules(const TrainerFile& trainer, RunReading& run) {
  using enum LinearLayer;
  QuantizedWeights& quantized = run.job.quantized;
  const std::string& family = run.job.model.family;
  const bool is_jamba = family == "jamba" && quantized.kind == Quantization::kInt8;
  if (trainer.defaults.project != TrainerProject::kAxolotl ||
      !(is_jamba || family == "falcon_h1")) {
    return;
  }
  quantized.takes_head = true;
  quantized.spared.at(static_cast<std::size_t>(kMixerOutput)) = true;
  if (is_jamba) {
    quantized.spared.at(static_cast<std::size_t>(kMixerInput)) = true;
    quantized.spared.at(static_cast<std::size_t>(kMixerScalars)) = true;
  }
}

// transformers 5 has taken out what made HQQ's layers (5.17 quantizers/quantizer_hqq.py,
// create_quantized_param; base.py, get_quantize_ops).
void refuse_method(const RunArguments& arguments, const char* method, RunReading& run) {
  const bool is_hqq = in_lower_case(arguments.text_or(method, "")) == "hqq";
  refuse(run, shown_setting(arguments, method) +
                  (is_hqq ? ": transformers 5 makes no layers of HQQ; bitsandbytes is described"
                          : ": bitsandbytes is described"));
}

}  // namespace

// Checkpoints of the Hub in 4 bits are nf4 with quantized scales
// (huggingface.co/unsloth/llama-3-8b-bnb-4bit config.json).
void read_quantized(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  read_checkpoint(trainer, run);
  if (const std::string name = packed_model(trainer); !name.empty()) {
    run.job.quantized = {.kind = Quantization::kNf4, .is_double = true};
    note_scales(trainer, name, run);
    if (run.job.model.moe.num_experts > 0) {
      refuse(run, "model " + shown(name, Encoding::kUnchecked) +
                      ": a checkpoint in 4 bits has experts as single linear layers, and "
                      "transformers 5 all of a layer as one tensor; experts that are quantized as "
                      "they are loaded are described (quantize_moe_experts)");
    }
    return;
  }
  const char* const method =
      first_set(arguments, {"quantization_method", "quant_method", "quant_config.name"});
  const std::string by = method == nullptr ? "bnb" : arguments.text_or(method, "");
  const Bits bits = bits_of(trainer);
  if (method != nullptr && by != "bnb" && by != "bitsandbytes" && by != "BNB" && by != "auto") {
    refuse_method(arguments, method, run);
  }
  if (bits.count == 0) {
    return;
  }
  if (bits.count != 4 && bits.count != 8) {
    refuse(run, shown_setting(arguments, bits.setting) + ": 4 and 8 bits are described");
    return;
  }
  if (bits.count == 8) {
    run.job.quantized = {.kind = Quantization::kInt8};
  } else {
    run.job.quantized = four_bits(trainer);
  }
  spare_modules(trainer, run);
}

// LLaMA-Factory ff6d4d1 model/model_utils/quantization.py (its compute type); axolotl 067b021
// loaders/model.py; bitsandbytes' default is bytes.
bool stores_floats(const TrainerFile& trainer) {
  const char* const setting = first_set(
      trainer.arguments, {"bnb_4bit_quant_storage", "bnb_config_kwargs.bnb_4bit_quant_storage"});
  if (setting == nullptr) {
    return trainer.defaults.stores_floats;
  }
  const std::string word = trainer.arguments.text_or(setting, "");
  return word.find("int8") == std::string::npos;
}

// Its default is fp16, in which it stores them as well (LLaMA-Factory ff6d4d1
// src/llamafactory/v1/plugins/model_plugins/quantization.py BnbParams); FSDP2 casts whatever floats
// it gathers (torch/distributed/fsdp/_fully_shard/_fsdp_param.py all_gather_inputs).
void read_quant_compute(const TrainerFile& trainer, bool is_sharded, RunReading& run,
                        const Library& library) {
  if (!is_4bit(run.job.quantized.kind)) {
    return;
  }
  const char* const setting = "quant_config.compute_dtype";
  const std::string word = trainer.arguments.text_or(setting, "float16");
  want(run, "quant_compute_dtype",
       word == "float16"   ? "fp16"
       : word == "float32" ? "fp32"
                           : "bf16",
       library);
  if (is_sharded && word != "bfloat16") {
    run.notes.push_back(trainer.file + ": " + setting + ": found " +
                        (trainer.arguments.has(setting) ? shown(word, Encoding::kUnchecked)
                                                        : "nothing, took float16") +
                        ", in which 4-bit weights are stored, too: FSDP2 casts them to bf16 as it "
                        "gathers them, which makes them other weights; bfloat16 keeps them");
  }
}

// axolotl asks torchao for NVFP4 by a configuration of weights alone, which torchao's QAT does not
// know (axolotl 067b021 utils/quantization.py get_quantization_config; torchao 0.18
// quantization/qat/fake_quantize_config.py _infer_fake_quantize_configs).
void read_fake_quantization(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  constexpr const char* kWeights = "qat.weight_dtype";
  if (first_set(arguments, {kWeights, "qat.activation_dtype", "qat.group_size",
                            "qat.quantize_embedding"}) == nullptr) {
    return;
  }
  const std::string weights = arguments.text_or(kWeights, "int8");  // QATConfig's own
  const std::string inputs = arguments.text_or("qat.activation_dtype", "none");
  if (weights == "nvfp4") {
    refuse(run, shown_setting(arguments, kWeights) +
                    ": torchao's QAT does not start from the configuration that axolotl gives it; "
                    "activation_dtype int8 with weight_dtype int4 is described");
    return;
  }
  if (weights != "int4" || inputs != "int8" || is_on(arguments, "qat.quantize_embedding")) {
    refuse(run, "qat of " + shown(inputs, Encoding::kUnchecked) + " activations and " +
                    shown(weights, Encoding::kUnchecked) + " weights" +
                    (is_on(arguments, "qat.quantize_embedding") ? " and an embedding" : "") +
                    ": activation_dtype int8 with weight_dtype int4 is described");
    return;
  }
  want(run, "fake_quantization", "int8_int4", library);
  constexpr std::int64_t kDefault = 32;  // of axolotl's own, as int8 is of weights (QATConfig)
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  want(run, "fake_quantization_group",
       std::to_string(arguments.integer_or("qat.group_size", kDefault, 1, kMost)), library);
}

}  // namespace shardplan
