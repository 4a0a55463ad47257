#include "tools/from/families.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/read/library.h"

namespace shardplan {
namespace {

constexpr std::string_view kPacked = "weights that are quantized in the checkpoint";
constexpr std::string_view kTower =
    "a tower for pictures or sound beside the text model; --model of a text model estimates that "
    "alone";
constexpr std::string_view kReads = "no model of the next token";
constexpr std::string_view kStates = "state-space layers";
constexpr std::string_view kLinear = "layers of linear attention";
constexpr std::string_view kOlder = "layers of another family than Llama's, Mistral's and Qwen's";

// A part of a published name, in lower case.
struct Family {
  std::string_view part;
  std::string_view what;
};
// The first that fits counts: how weights are kept, what stands beside the text, then its layers.
constexpr std::array kFamilies = std::to_array<Family>({
    {.part = "-nvfp4", .what = kPacked},
    {.part = "-awq", .what = kPacked},
    {.part = "-gptq", .what = kPacked},
    {.part = "-bnb", .what = kPacked},
    {.part = "-int4", .what = kPacked},
    {.part = "-int8", .what = kPacked},
    {.part = "prequantized", .what = kPacked},
    {.part = "-fp8", .what = kPacked},
    {.part = "aqlm", .what = kPacked},
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
    {.part = "jamba", .what = kStates},
    {.part = "mamba", .what = kStates},
    {.part = "falcon-h1", .what = kStates},
    {.part = "nemotron-3", .what = kStates},
    {.part = "granite-4", .what = kStates},
    {.part = "qwen3.5", .what = kTower},
    {.part = "qwen3-next", .what = kLinear},
    {.part = "kimi-linear", .what = kLinear},
    {.part = "minimax", .what = kLinear},
    {.part = "lfm2", .what = "convolutions between layers of attention"},
    {.part = "gpt-oss", .what = "experts and attention with sinks"},
    {.part = "gemma-4", .what = "layers of several kinds"},
    {.part = "/mpt-", .what = kOlder},
    {.part = "/phi-1", .what = kOlder},
    {.part = "/phi-2", .what = kOlder},
    {.part = "/qwen-7b", .what = kOlder},
    {.part = "/qwen-14b", .what = kOlder},
    {.part = "/qwen-72b", .what = kOlder},
    {.part = "/glm-4-9b-chat", .what = kOlder},
    {.part = "internlm", .what = kOlder},
    {.part = "/afm-", .what = kOlder},
    {.part = "hunyuan", .what = kOlder},
    {.part = "/mimo-", .what = kOlder},
    {.part = "gpt-j", .what = kOlder},
    {.part = "dbrx", .what = kOlder},
    {.part = "trinity-", .what = "attention with gates"},
    {.part = "glm-4.7-flash", .what = "latent attention with other widths than DeepSeek's"},
    {.part = "/falcon", .what = kOlder},
    {.part = "starcoder", .what = kOlder},
    {.part = "btlm", .what = kOlder},
    {.part = "cerebras-gpt", .what = kOlder},
    {.part = "/pythia", .what = kOlder},
    {.part = "gpt-neox", .what = kOlder},
    {.part = "replit", .what = kOlder},
    {.part = "redpajama-incite", .what = kOlder},
    {.part = "stablelm", .what = kOlder},
    {.part = "xgen", .what = kOlder},
    {.part = "nemotron-mini", .what = kOlder},
    {.part = "command-r", .what = kOlder},
    {.part = "apertus", .what = kOlder},
    {.part = "olmo", .what = kOlder},
});

}  // namespace

std::string undescribed_family(const std::string& name, bool has_described_layers) {
  const std::string lower = in_lower_case(name);
  const auto is_of_layers = [](const Family& each) {
    return each.what != kPacked && each.what != kTower && each.what != kReads;
  };
  const auto* const found = std::ranges::find_if(kFamilies, [&](const Family& each) {
    return lower.find(each.part) != std::string::npos &&
           !(has_described_layers && is_of_layers(each));
  });
  return found == kFamilies.end() ? "" : std::string(found->what);
}

}  // namespace shardplan
