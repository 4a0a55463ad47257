#include "data/models/modules.h"

#include <algorithm>
#include <array>
#include <regex>
#include <string_view>

#include "data/read/input_error.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

using enum LinearLayer;

// Llama's, unless a family says otherwise. Several modules of one place stand with a space between.
struct Names {
  std::string_view family;
  std::string_view layers = "model.layers";
  std::string_view attention = "self_attn";
  std::string_view output = "o_proj";
  std::string_view joint = "";           // of queries, keys and values in one
  std::string_view attention_gate = "";  // where it has a projection of its own
  std::string_view ffn = "mlp";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view gate_up = "";  // of both in one
  std::string_view shared = "mlp.shared_experts";
  std::string_view mixer = "linear_attn";
  std::string_view mixer_input = "in_proj";
  std::string_view mixer_gate = "";
  std::string_view mixer_scalars = "";
  std::string_view latent = "";  // around routed experts
};

constexpr Names kLlama = {.family = "llama"};
constexpr Names kQwen35 = {.family = "qwen3_5_text",
                           .shared = "mlp.shared_expert",
                           .mixer_input = "in_proj_qkv",
                           .mixer_gate = "in_proj_z",
                           .mixer_scalars = "in_proj_b in_proj_a"};
constexpr Names kLfm = {.family = "lfm2",
                        .output = "out_proj",
                        .ffn = "feed_forward",
                        .gate = "w1",
                        .up = "w3",
                        .down = "w2",
                        .mixer = "conv"};

constexpr Names also_named(std::string_view family, Names names) {
  names.family = family;
  return names;
}

constexpr std::array kNames = std::to_array<Names>({
    {.family = "afmoe", .attention_gate = "gate_proj"},
    {.family = "bamba", .ffn = "feed_forward", .mixer = "mamba"},
    {.family = "falcon",
     .layers = "transformer.h",
     .attention = "self_attention",
     .output = "dense",
     .joint = "query_key_value",
     .up = "dense_h_to_4h",
     .down = "dense_4h_to_h"},
    {.family = "falcon_h1", .ffn = "feed_forward", .mixer = "mamba"},
    {.family = "glm", .gate_up = "gate_up_proj"},
    {.family = "glm4", .gate_up = "gate_up_proj"},
    {.family = "gpt2",
     .layers = "transformer.h",
     .attention = "attn",
     .output = "c_proj",
     .joint = "c_attn",
     .up = "c_fc",
     .down = "c_proj"},
    {.family = "gptj",
     .layers = "transformer.h",
     .attention = "attn",
     .output = "out_proj",
     .up = "fc_in",
     .down = "fc_out"},
    {.family = "gpt_neox",
     .layers = "gpt_neox.layers",
     .attention = "attention",
     .output = "dense",
     .joint = "query_key_value",
     .up = "dense_h_to_4h",
     .down = "dense_4h_to_h"},
    {.family = "granitemoehybrid",
     .ffn = "shared_mlp",
     .down = "output_linear",
     .gate_up = "input_linear",
     .shared = "shared_mlp",
     .mixer = "mamba"},
    {.family = "granitemoeshared",
     .down = "output_linear",
     .gate_up = "input_linear",
     .shared = "shared_mlp"},
    {.family = "jamba", .ffn = "feed_forward", .mixer = "mamba", .mixer_scalars = "x_proj dt_proj"},
    {.family = "hunyuan_v1_moe", .shared = "mlp.shared_mlp"},
    kLfm,
    also_named("lfm2_moe", kLfm),
    {.family = "nemotron_h",
     .attention = "mixer",
     .ffn = "mixer",
     .shared = "mixer.shared_experts",
     .mixer = "mixer",
     .latent = "fc1_latent_proj fc2_latent_proj"},
    {.family = "phi", .output = "dense", .up = "fc1", .down = "fc2"},
    {.family = "phi3", .joint = "qkv_proj", .gate_up = "gate_up_proj"},
    {.family = "qwen2_moe", .shared = "mlp.shared_expert"},
    {.family = "qwen3_next",
     .shared = "mlp.shared_expert",
     .mixer_input = "in_proj_qkvz",
     .mixer_scalars = "in_proj_ba"},
    kQwen35,
    also_named("qwen3_5_moe_text", kQwen35),
});

const Names& names_of(const ModelSpec& model) {
  const auto* const found = std::ranges::find(kNames, model.family, &Names::family);
  return found == kNames.end() ? kLlama : *found;
}

// Modules below one layer, in order.
class Modules {
 public:
  explicit Modules(std::string layer) : layer_(std::move(layer)) {}

  void add(std::string_view owner, std::string_view names, std::vector<LinearLayer> places) {
    std::size_t begin = 0;
    while (begin < names.size()) {
      const std::size_t end = std::min(names.find(' ', begin), names.size());
      const std::string name(names.substr(begin, end - begin));
      modules_.push_back({layer_ + "." + std::string(owner) + "." + name, places});
      begin = end + 1;
    }
  }

  std::vector<LinearModule> take() { return std::move(modules_); }

 private:
  std::string layer_;
  std::vector<LinearModule> modules_;
};

void add_attention(Modules& modules, const ModelSpec& model, const Names& names) {
  const std::string_view owner = names.attention;
  if (model.is_mla() && model.mla.q_lora_rank == 0) {
    modules.add(owner, "q_proj", {kQuery});
    modules.add(owner, "kv_a_proj_with_mqa kv_b_proj", {kKey, kValue});
  } else if (model.is_mla()) {  // all projections are adapted as those of keys are
    modules.add(owner, "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj", {kKey, kValue});
  } else if (!names.joint.empty()) {
    modules.add(owner, names.joint, {kQuery, kKey, kValue});
  } else {
    modules.add(owner, "q_proj", {kQuery});
    modules.add(owner, "k_proj", {kKey});
    modules.add(owner, "v_proj", {kValue});
  }
  modules.add(owner, names.output, {kOutput});
  modules.add(owner, names.attention_gate, {kGate});
}

void add_ffn(Modules& modules, const ModelSpec& model, const Names& names, std::string_view owner) {
  if (!model.gated_ffn) {
    modules.add(owner, names.up, {kUp});
  } else if (!names.gate_up.empty()) {
    modules.add(owner, names.gate_up, {kGate, kUp});
  } else {
    modules.add(owner, names.gate, {kGate});
    modules.add(owner, names.up, {kUp});
  }
  modules.add(owner, names.down, {kDown});
}

void add_mixer(Modules& modules, const Names& names) {
  modules.add(names.mixer, names.mixer_input, {kMixerInput});
  modules.add(names.mixer, names.mixer_gate, {kMixerGate});
  modules.add(names.mixer, names.mixer_scalars, {kMixerScalars});
  modules.add(names.mixer, "out_proj", {kMixerOutput});
}

// Kimi delta attention has the names of attention, keys and values in places of their own.
void add_kimi_delta(Modules& modules, const Names& names) {
  const std::string_view owner = names.attention;
  modules.add(owner, "q_proj", {kQuery});
  modules.add(owner, "k_proj v_proj", {kMixerInput});
  modules.add(owner, "forget_gate.f_a_proj forget_gate.f_b_proj b_proj", {kMixerScalars});
  modules.add(owner, "g_a_proj g_b_proj", {kMixerGate});
  modules.add(owner, names.output, {kOutput});
}

// A Fitting collects, place by place, which linear layers of a model some target fits and which it
// leaves out.
class Fitting {
 public:
  explicit Fitting(const ModelSpec& model) {
    for (std::int64_t layer = 0; layer < model.num_layers(); ++layer) {
      for (LinearModule& module : linear_modules(model, layer)) {
        modules_.push_back(std::move(module));
      }
    }
    fits_.resize(modules_.size());
  }

  // Whether any module fits.
  template <class Fits>
  bool take(Fits fits) {
    bool found = false;
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      if (fits(modules_[i].path)) {
        fits_[i] = true;
        found = true;
      }
    }
    return found;
  }

  void finish(FittedTargets& fitted) const {
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      for (const LinearLayer place : modules_[i].places) {
        const bool is_first = !fitted.targets.on.at(static_cast<std::size_t>(place));
        fitted.targets.on.at(static_cast<std::size_t>(place)) |= fits_[i];
        if (fits_[i] && is_first && fitted.in_part.empty() && is_in_part(place)) {
          fitted.in_part = modules_[i].path;
        }
      }
    }
  }

 private:
  bool is_in_part(LinearLayer place) const {
    bool has_unfit = false;
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      has_unfit |=
          !fits_[i] && std::ranges::find(modules_[i].places, place) != modules_[i].places.end();
    }
    return has_unfit;
  }

  std::vector<LinearModule> modules_;
  std::vector<bool> fits_;
};

struct ExpertName {
  std::string_view name;
  LinearLayer place;
};
constexpr std::array kExpertNames =
    std::to_array<ExpertName>({{"gate_proj", kGate}, {"up_proj", kUp}, {"down_proj", kDown}});

void take_experts(FittedTargets& fitted, LinearLayer place) {
  fitted.targets.on.at(static_cast<std::size_t>(place)) = true;
  fitted.targets.experts = ExpertTargets::kFfnNames;
}

bool ends_as(const std::string& path, const std::string& name) {
  return path == name || path.ends_with("." + name);
}

}  // namespace

std::vector<std::string> default_targets(const ModelSpec& model) {
  if (model.family == "gpt_neox" || model.family == "falcon") {
    return {"query_key_value"};
  }
  if (model.family == "gpt2") {
    return {"c_attn"};
  }
  if (model.family == "phi") {
    return {"q_proj", "v_proj", "fc1", "fc2"};
  }
  if (model.family == "nemotron_h") {
    return {"q_proj", "k_proj", "v_proj", "o_proj"};
  }
  return {"q_proj", "v_proj"};
}

std::vector<LinearModule> linear_modules(const ModelSpec& model, std::int64_t layer) {
  const LayerSpec& spec = model.layers[static_cast<std::size_t>(layer)];
  const Names& names = names_of(model);
  Modules modules(std::string(names.layers) + "." + std::to_string(layer));
  if (spec.mixer == MixerKind::kAttention) {
    add_attention(modules, model, names);
  } else if (spec.mixer == MixerKind::kKimiDelta) {
    add_kimi_delta(modules, names);
  } else if (spec.mixer != MixerKind::kNone) {
    add_mixer(modules, names);
  }
  if (spec.has_mamba_beside) {
    add_mixer(modules, names);
  }
  if (spec.has_ffn && !spec.is_moe) {
    add_ffn(modules, model, names, names.ffn);
  }
  if (spec.is_moe && model.moe.shared_ffn > 0) {
    add_ffn(modules, model, names, names.shared);
  }
  if (spec.is_moe && model.moe.shared_gate) {
    modules.add("mlp", "shared_expert_gate", {kSharedGate});
  }
  if (spec.is_moe && model.moe.latent > 0) {
    modules.add(names.ffn, names.latent, {kLatent});
  }
  return modules.take();
}

FittedTargets fit_names(const ModelSpec& model, const std::vector<std::string>& names) {
  FittedTargets fitted;
  Fitting fitting(model);
  for (const std::string& name : names) {
    const auto* const expert = std::ranges::find_if(kExpertNames, [&](const ExpertName& each) {
      return ends_as(name, std::string(each.name));
    });
    const bool fits = fitting.take([&](const std::string& path) { return ends_as(path, name); });
    const bool names_experts = expert != kExpertNames.end();
    if (names_experts) {
      fitted.targets.experts = ExpertTargets::kFfnNames;
    }
    if (names_experts && model.has_moe_layers()) {
      take_experts(fitted, expert->place);
    } else if (!fits) {
      fitted.unfit.push_back(name);
    }
  }
  fitting.finish(fitted);
  return fitted;
}

FittedTargets fit_pattern(const ModelSpec& model, const std::string& pattern,
                          const std::string& where) {
  FittedTargets fitted;
  try {
    const std::regex expression(pattern);
    const auto fits = [&](const std::string& path) { return std::regex_match(path, expression); };
    Fitting fitting(model);
    if (!fitting.take(fits)) {
      fitted.unfit.push_back(pattern);
    }
    for (const ExpertName& each : kExpertNames) {
      const std::string path =
          std::string(names_of(model).layers) + ".0.mlp.experts." + std::string(each.name);
      if (model.has_moe_layers() && fits(path)) {
        take_experts(fitted, each.place);
      }
    }
    fitting.finish(fitted);
  } catch (const std::regex_error&) {
    throw InputError(where + ": found '" + shown(pattern, Encoding::kUnchecked) +
                         "', expected a regular expression or names of linear layers",
                     "write the names of the layers, as q_proj, v_proj");
  }
  return fitted;
}

}  // namespace shardplan
