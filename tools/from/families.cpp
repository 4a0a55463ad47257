#include "tools/from/families.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "data/models/family.h"
#include "data/read/library.h"

namespace shardplan {
namespace {

constexpr std::string_view kPacked = "weights that are quantized in the checkpoint";
// transformers 5.17 quantizers/quantizer_nvfp4.py, quantizer_finegrained_fp8.py, is_trainable;
// axolotl 067b021 integrations/kernels/adapters/nvfp4_moe.py.
constexpr std::string_view kNvfp4 =
    "weights in NVFP4, which transformers does not train and axolotl's own kernels do, which are "
    "not described";
constexpr std::string_view kFp8 =
    "weights in fp8, which transformers does not train; of its release in bf16, and of weights "
    "that "
    "are dequantized as they are loaded, --model estimates the run";
// transformers 5.17 utils/quantization_config.py GPTQConfig (backend auto); gptqmodel 7.3.4 utils/
// importer.py select_quant_linear, nn_modules/qlinear/__init__.py train.
constexpr std::string_view kByKernel =
    "weights packed by AWQ or GPTQ: gptqmodel takes kernels of Machete's or Marlin's for them, "
    "which do not train, and the run stops as training begins; nf4 by bitsandbytes is described";
constexpr std::string_view kAqlm =
    "weights in AQLM's codebooks, whose kernels are not described; nf4 by bitsandbytes is";
// onebitllms, and axolotl 067b021 use_onebitllms.
constexpr std::string_view kTernary = "weights of three values, which onebitllms trains";
// axolotl 067b021 monkeypatch/models/llama4/modeling.py.
constexpr std::string_view kLinearized =
    "experts of Llama 4 as linear layers of their own in nf4 (axolotl's "
    "llama4_linearized_experts), "
    "which are not described; of weights in bf16 --model estimates the run";
constexpr std::string_view kTower =
    "a tower for pictures or sound beside the text model; --model of a text model estimates that "
    "alone";
// transformers 5.17 models/gemma3n/modeling_gemma3n.py.
constexpr std::string_view kStreams =
    "layers of Gemma 3n (four streams by AltUp, Laurel blocks, sparse activations), which are not "
    "described";
constexpr std::string_view kReads = "no model of the next token";
constexpr std::string_view kStates = "state-space layers";
constexpr std::string_view kRemote =
    "layers by code of the model's own repository, which is not read; --model config.json of a "
    "family with the same layers estimates those";

// A part of a published name, in lower case.
struct Family {
  std::string_view part;
  std::string_view what;
  std::string_view model_type = "";  // of a config.json that has such layers
};
// The first that fits counts: how weights are kept, what stands beside the text, then its layers.
constexpr std::array kFamilies = std::to_array<Family>({
    {.part = "-nvfp4", .what = kNvfp4},
    {.part = "-awq", .what = kByKernel},
    {.part = "-gptq", .what = kByKernel},
    {.part = "-linearized", .what = kLinearized},
    {.part = "-bnb", .what = kPacked},
    {.part = "-int4", .what = kPacked},
    {.part = "-int8", .what = kPacked},
    {.part = "prequantized", .what = kTernary},
    {.part = "-fp8", .what = kFp8},
    {.part = "aqlm", .what = kAqlm},
    {.part = "-vl", .what = kTower},
    {.part = "vision", .what = kTower},
    {.part = "voxtral", .what = kTower},
    {.part = "pixtral", .what = kTower},
    {.part = "llava", .what = kTower},
    {.part = "ocr", .what = kTower},
    {.part = "omni", .what = kTower},
    {.part = "internvl", .what = kTower},
    {.part = "minicpm-v", .what = kTower},
    {.part = "glm-4.6v", .what = kTower},
    {.part = "glm-4v", .what = kTower},
    {.part = "glm-4.5v", .what = kTower},
    {.part = "llama-4-", .what = kTower},
    {.part = "ministral-3-", .what = kTower},
    {.part = "mistral-small-3.", .what = kTower},
    {.part = "mistral-small-4", .what = kTower},
    {.part = "mistral-medium-3", .what = kTower},
    {.part = "magistral-small-2509", .what = kTower},
    {.part = "devstral-small-2-", .what = kTower},
    {.part = "phi-4-multimodal", .what = kTower},
    {.part = "smolvlm", .what = kTower},
    {.part = "keye-", .what = kTower},
    {.part = "/ovis", .what = kTower},
    {.part = "audio", .what = kTower},
    {.part = "moss-vl", .what = kTower},
    {.part = "gemma-3n", .what = kStreams},
    {.part = "gemma-3-4b", .what = kTower},
    {.part = "gemma-3-12b", .what = kTower},
    {.part = "gemma-3-27b", .what = kTower},
    {.part = "-tts", .what = kTower},
    {.part = "emu3", .what = kTower},
    {.part = "diffusiongemma", .what = kReads},
    {.part = "reranker", .what = kReads},
    {.part = "embedding", .what = kReads},
    {.part = "qwen3.5", .what = kTower},
    {.part = "qwen3.6", .what = kTower},
    {.part = "gemma-4", .what = kTower},
    {.part = "falcon-mamba", .what = kStates, .model_type = "falcon_mamba"},
    {.part = "mamba", .what = kStates, .model_type = "mamba"},
    {.part = "/mpt-", .what = kRemote},
    {.part = "/qwen-7b", .what = kRemote},
    {.part = "/qwen-14b", .what = kRemote},
    {.part = "/qwen-72b", .what = kRemote},
    {.part = "/glm-4-9b-chat", .what = kRemote},
    {.part = "internlm2", .what = kRemote, .model_type = "internlm2"},
    {.part = "internlm3", .what = kRemote, .model_type = "internlm3"},
    {.part = "internlm", .what = kRemote},
    {.part = "dbrx-base-converted", .what = kRemote},
    {.part = "falcon-rw", .what = "positions by ALiBi"},
    {.part = "btlm", .what = kRemote},
    {.part = "replit", .what = kRemote},
});

// Reasons that stand whatever layers are described.
constexpr std::array kNotOfLayers = std::to_array<std::string_view>(
    {kPacked, kNvfp4, kFp8, kByKernel, kAqlm, kTernary, kLinearized, kTower, kStreams, kReads});

bool is_of_layers(const Family& family) {
  return std::ranges::find(kNotOfLayers, family.what) == kNotOfLayers.end();
}

// The one list of families says whose layers are read.
bool is_read(std::string_view model_type) {
  const std::span<const ModelFamily> families = model_families();
  return std::ranges::find(families, model_type, &ModelFamily::model_type) != families.end();
}

}  // namespace

std::string undescribed_family(const std::string& name, Described described) {
  const std::string lower = in_lower_case(name);
  const auto* const found = std::ranges::find_if(kFamilies, [&](const Family& each) {
    return lower.find(each.part) != std::string::npos &&
           !(described.layers && is_of_layers(each)) && !(described.tower && each.what == kTower);
  });
  return found == kFamilies.end() || is_read(found->model_type) ? "" : std::string(found->what);
}

}  // namespace shardplan
