#include "data/arguments/megatron_hybrid.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/arguments/megatron.h"
#include "data/models/config.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr const char* kPattern = "--hybrid-layer-pattern";
constexpr const char* kOlderPattern = "--hybrid-override-pattern";
constexpr const char* kAttentionRatio = "--hybrid-attention-ratio";
constexpr const char* kFfnRatio = "--hybrid-mlp-ratio";

// Marks `count` of the letters M by `mark`, evenly spaced:
// core/ssm/mamba_hybrid_layer_allocation.py of core_v0.16.1, _allocate_auto. `run` layers M lie
// between two of them.
void mark_evenly(std::string& layers, char mark, double run) {
  double left = run;
  for (char& layer : layers) {
    if (layer != 'M') {
      continue;
    }
    if (left < 0.5) {
      layer = mark;
      left += run;
    } else {
      left -= 1;
    }
  }
}

// Python rounds halves to even.
std::int64_t rounded(double value) {
  return std::lrint(value);
}

std::string pattern_of_ratios(std::int64_t num_layers, double attention_ratio, double ffn_ratio) {
  const auto layers = static_cast<double>(num_layers);
  const std::int64_t attention = rounded(layers * attention_ratio);
  const std::int64_t ffns = rounded(layers * ffn_ratio);
  const std::int64_t mamba = num_layers - attention;
  std::string pattern(static_cast<std::size_t>(num_layers), 'M');
  mark_evenly(pattern, '*', static_cast<double>(mamba) / static_cast<double>(attention + 1));
  if (ffns > 0) {
    mark_evenly(pattern, '-', static_cast<double>(mamba - ffns) / static_cast<double>(ffns));
  }
  return pattern;
}

bool names_hybrid(const RunArguments& arguments) {
  const std::vector<std::string> spec = arguments.texts("--spec");
  return std::ranges::any_of(spec, [](const std::string& word) {
    return word == "mamba_stack_spec" || word == "hybrid_stack_spec";
  });
}

std::string checked(const RunArguments& arguments, const char* name, const std::string& pattern) {
  if (pattern.empty() || pattern.find_first_not_of("M*-E|/GD+") != std::string::npos) {
    throw arguments.error(name, "found \"" + shown(pattern, Encoding::kUnchecked) +
                                    "\", expected letters M, *, - and E");
  }
  const std::optional<std::int64_t> layers = arguments.integer("--num-layers", 1, kMaxLayers);
  const bool is_plain = pattern.find_first_of("|/") == std::string::npos;
  if (name == std::string_view(kOlderPattern) && is_plain && layers &&
      *layers != std::ssize(pattern)) {
    throw arguments.error(name, "found " + std::to_string(pattern.size()) + " letters, expected " +
                                    std::to_string(*layers) + ", one for each of --num-layers");
  }
  return pattern;
}

}  // namespace

std::optional<std::string> hybrid_pattern(const RunArguments& arguments) {
  for (const char* name : {kPattern, kOlderPattern}) {
    if (arguments.has(name)) {
      return checked(arguments, name, arguments.text_or(name, ""));
    }
  }
  const double attention = arguments.number_or(kAttentionRatio, 0, 0, 1);
  const double ffns = arguments.number_or(kFfnRatio, 0, 0, 1);
  if (attention == 0 && ffns == 0 && !names_hybrid(arguments)) {
    return std::nullopt;
  }
  if (attention + ffns > 1) {
    throw arguments.error(kFfnRatio, "found " + exact_text(ffns) + ", expected at most 1 less " +
                                         kAttentionRatio + " " + exact_text(attention));
  }
  return pattern_of_ratios(arguments.required_integer("--num-layers", 1, kMaxLayers), attention,
                           ffns);
}

std::string why_hybrid_refused(const RunArguments& arguments) {
  const std::optional<std::string> pattern = hybrid_pattern(arguments);
  if (!pattern) {
    return "";
  }
  if (pattern->find_first_of("|/") != std::string::npos) {
    return "unsupported: " + std::string(kPattern) + " " + *pattern +
           ": stages by | and prediction modules by / are of later releases than core_v0.16.1, and "
           "not described; M, *, - and E are";
  }
  // d98e8a6 core/models/hybrid/hybrid_layer_allocation.py, Symbols.
  if (pattern->find_first_of("GD+") != std::string::npos) {
    return "unsupported: " + std::string(kPattern) + " " + *pattern +
           ": layers G, D and + (gated delta nets, sparse and latent attention) are of later "
           "releases than core_v0.16.1, and not described; M, *, - and E are";
  }
  if (arguments.has("--disable-mamba-mem-eff-path")) {
    return "unsupported: --disable-mamba-mem-eff-path: a scan that saves more, which is not "
           "described";
  }
  return "";
}

// core/transformer/transformer_config.py, mamba_*; core/ssm/mamba_mixer.py, MambaMixer.
void read_hybrid(const RunArguments& arguments, const std::string& pattern, ModelSpec& model) {
  model.family = "mamba";
  model.norms_per_layer = 1;
  model.activation = arguments.has("--squared-relu") ? Activation::kReluSquared : model.activation;
  const bool rotates = arguments.has("--use-rotary-position-embeddings") ||
                       arguments.text_or("--position-embedding-type", "") == "rope";
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    const char letter = pattern[i];
    layer.mixer = letter == 'M'   ? MixerKind::kMamba2
                  : letter == '*' ? MixerKind::kAttention
                                  : MixerKind::kNone;
    layer.has_ffn = letter == '-' || letter == 'E';
    layer.is_moe = letter == 'E';
    layer.has_rotary = rotates;
  }
  if (!model.has_moe_layers()) {
    model.moe = {};
  } else if (model.moe.num_experts == 0) {
    throw arguments.error("--num-experts", "found nothing beside layers E, expected how many");
  }
  MambaSpec& mamba = model.mamba;
  mamba.head_dim = arguments.integer_or("--mamba-head-dim", 64, 1, kMaxSize);
  mamba.num_heads =
      arguments.integer_or("--mamba-num-heads", 2 * model.hidden / mamba.head_dim, 1, kMaxCount);
  mamba.inner = mamba.num_heads * mamba.head_dim;
  mamba.state = arguments.integer_or("--mamba-state-dim", 128, 1, kMaxSize);
  mamba.groups = arguments.integer_or("--mamba-num-groups", 8, 1, kMaxCount);
  mamba.convolution = 4;
  mamba.chunk = 128;
}

bool splits_mixer_input(const RunArguments& arguments, const ModelSpec& model) {
  const bool has_delta_nets = std::ranges::any_of(
      model.layers, [](const LayerSpec& layer) { return layer.mixer == MixerKind::kGatedDelta; });
  return has_delta_nets &&
         in_lower_case(arguments.text_or("--linear-decoupled-in-proj", "false")) == "true";
}

void read_megatron_mixers(const RunArguments& arguments, RunReading& run, const Library& library) {
  if (splits_mixer_input(arguments, run.job.model)) {
    want(run, "decoupled_in_proj", "true", library);
  }
  if (run.job.model.family.starts_with("gemma4")) {
    refuse(run,
           "model " + run.job.model.name +
               ": mcore-bridge's own layers for Gemma 4 (model/mm_gpts/gemma4.py), whose heads "
               "differ by layer; models of Megatron-core's layers are described");
  }
}

void note_later_pattern(const RunArguments& arguments, std::vector<std::string>& notes) {
  if (arguments.has(kPattern)) {
    notes.emplace_back(arguments
                           .error(kPattern,
                                  "found a name of later releases than core_v0.16.1, took layers "
                                  "and plans to be those of core_v0.16.1")
                           .what());
  }
}

}  // namespace shardplan
