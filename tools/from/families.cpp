#include "tools/from/families.h"

#include <algorithm>
#include <array>
#include <string_view>

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
// gptqmodel 7.7 utils/importer.py select_quant_linear, nn_modules/qlinear/__init__.py train.
constexpr std::string_view kByKernel =
    "weights packed by AWQ or GPTQ: the kernel that gptqmodel takes decides whether products keep "
    "them unpacked, and the one that it takes by itself on GPUs since A100 does not train";
constexpr std::string_view kAqlm =
    "weights in AQLM's codebooks, whose kernels are not described; nf4 by bitsandbytes is";
// onebitllms, and axolotl 067b021 use_onebitllms.
constexpr std::string_view kTernary = "weights of three values, which onebitllms trains";
constexpr std::string_view kTower =
    "a tower for pictures or sound beside the text model; --model of a text model estimates that "
    "alone";
constexpr std::string_view kReads = "no model of the next token";
constexpr std::string_view kStates = "state-space layers";
constexpr std::string_view kLinear = "layers of linear attention";
constexpr std::string_view kRemote =
    "layers by code of the model's own repository, which is not read; --model config.json of a "
    "family with the same layers estimates those";
constexpr std::string_view kOlder = "layers of another family than Llama's, Mistral's and Qwen's";

// A part of a published name, in lower case.
struct Family {
  std::string_view part;
  std::string_view what;
};
// The first that fits counts: how weights are kept, what stands beside the text, then its layers.
constexpr std::array kFamilies = std::to_array<Family>({
    {.part = "-nvfp4", .what = kNvfp4},
    {.part = "-awq", .what = kByKernel},
    {.part = "-gptq", .what = kByKernel},
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
    {.part = "gemma-3n", .what = kTower},
    {.part = "gemma-3-4b", .what = kTower},
    {.part = "gemma-3-12b", .what = kTower},
    {.part = "gemma-3-27b", .what = kTower},
    {.part = "-tts", .what = kTower},
    {.part = "emu3", .what = kTower},
    {.part = "reranker", .what = kReads},
    {.part = "embedding", .what = kReads},
    {.part = "mamba", .what = kStates},
    {.part = "qwen3.5", .what = kTower},
    {.part = "qwen3.6", .what = kTower},
    {.part = "kimi-linear", .what = kLinear},
    {.part = "minimax", .what = kLinear},
    {.part = "gpt-oss", .what = "experts and attention with sinks"},
    {.part = "gemma-4",
     .what = "attention whose heads are 512 wide in every sixth layer, for which no kernel is "
             "described"},
    {.part = "/mpt-", .what = kRemote},
    {.part = "/qwen-7b", .what = kRemote},
    {.part = "/qwen-14b", .what = kRemote},
    {.part = "/qwen-72b", .what = kRemote},
    {.part = "/glm-4-9b-chat", .what = kRemote},
    {.part = "internlm", .what = kRemote},
    {.part = "dbrx", .what = kRemote},
    {.part = "falcon-rw", .what = "positions by ALiBi"},
    {.part = "starcoder", .what = kOlder},
    {.part = "btlm", .what = kRemote},
    {.part = "replit", .what = kRemote},
    {.part = "stablelm", .what = kOlder},
    {.part = "nemotron-mini", .what = kOlder},
    {.part = "command-r", .what = kOlder},
    {.part = "apertus", .what = kOlder},
    {.part = "olmo", .what = kOlder},
});

// Reasons that stand whatever layers are described.
constexpr std::array kNotOfLayers = std::to_array<std::string_view>(
    {kPacked, kNvfp4, kFp8, kByKernel, kAqlm, kTernary, kTower, kReads});

}  // namespace

std::string undescribed_family(const std::string& name, Described described) {
  const std::string lower = in_lower_case(name);
  const auto is_of_layers = [](const Family& each) {
    return std::ranges::find(kNotOfLayers, each.what) == kNotOfLayers.end();
  };
  const auto* const found = std::ranges::find_if(kFamilies, [&](const Family& each) {
    return lower.find(each.part) != std::string::npos &&
           !(described.layers && is_of_layers(each)) && !(described.tower && each.what == kTower);
  });
  return found == kFamilies.end() ? "" : std::string(found->what);
}

}  // namespace shardplan
