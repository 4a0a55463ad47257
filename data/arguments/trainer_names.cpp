// LLaMA-Factory ff6d4d1 model/adapter.py; axolotl 067b021 utils/freeze.py, train.py; ms-swift
// 3602360 swift/pipelines/train/tuner.py, swift/tuners/llamapro.py.
#include "data/arguments/trainer_names.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "data/arguments/trainer_tuning.h"
#include "data/read/case_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {

// Values of a list of YAML, "a, b", or of a command line.
std::vector<std::string> items_of(const RunArguments& arguments, const char* name) {
  std::vector<std::string> items;
  if (!arguments.has(name)) {
    return items;
  }
  for (const std::string& text : arguments.texts(name)) {
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(", ", begin), text.size());
      items.push_back(text.substr(begin, end - begin));
      begin = end + 2;
    }
  }
  std::erase_if(items, [](const std::string& item) {
    return item.empty() || item == "[]" || item == "null" || item == "None";
  });
  return items;
}

// The expression that finds the text as it is.
std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char letter : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(letter) != std::string_view::npos) {
      pattern += '\\';
    }
    pattern += letter;
  }
  return pattern;
}

void add_rule(RunReading& run, const std::string& setting, const std::string& pattern,
              bool trains) {
  if (const std::string why = why_no_pattern(pattern); !why.empty()) {
    refuse(run, setting + " " + shown(pattern, Encoding::kUnchecked) +
                    ": no regular expression as ECMAScript has them (" + why + ")");
    return;
  }
  run.job.name_rules.push_back({.pattern = pattern, .trains = trains});
}

void freeze_all(RunReading& run) {
  run.job.name_rules.push_back({.pattern = "", .trains = false});
}

namespace {

// utils/freeze.py, LayerNamePattern: from the beginning of a name, dots are dots but before a plus,
// and a range of rows at the end makes zeros of a gradient that is there all the same.
std::string axolotl_pattern(const std::string& written) {
  static const std::regex range(R"(^(.+)\[([0-9]*)(:[0-9]*)?\]$)");
  std::smatch parts;
  const bool has_range =
      std::regex_match(written, parts, range) && (parts[3].matched || parts[2].length() > 0);
  const std::string name = has_range ? parts[1].str() : written;
  std::string pattern = "^(?:";
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_dot = name[i] == '.' && (i + 1 == name.size() || name[i + 1] != '+');
    pattern += is_dot ? "\\." : std::string(1, name[i]);
  }
  return pattern + ")";
}

// Parameters of an adapted model by their names: the matrices of every adapter, and others of which
// an expression for adapters may fit as well. Models with a tower have the text model within.
struct AdaptedNames {
  std::vector<std::string> adapters;
  std::vector<std::string> others;
};
AdaptedNames adapted_names(const Job& job) {
  const bool has_tower = job.profile.vision_tower != TowerUse::kAbsent;
  const std::string path =
      std::string("base_model.model.model.") + (has_tower ? "language_model." : "");
  AdaptedNames names;
  names.others = {path + "embed_tokens.weight", path + "norm.weight",
                  "base_model.model.lm_head.weight"};
  for (std::int64_t layer = 0; layer < job.model.num_layers(); ++layer) {
    const std::string within = path + "layers." + std::to_string(layer) + ".";
    names.others.push_back(within + "input_layernorm.weight");
    for (std::size_t i = 0; i <= static_cast<std::size_t>(LinearLayer::kDown); ++i) {
      const bool is_of_ffn = i >= static_cast<std::size_t>(LinearLayer::kGate);
      const std::string module =
          within + (is_of_ffn ? "mlp." : "self_attn.") + std::string(kLinearLayerNames[i]);
      if (job.adapters.targets[i]) {
        names.adapters.push_back(module + ".lora_A.default.weight");
        names.adapters.push_back(module + ".lora_B.default.weight");
      }
      names.others.push_back(module + (job.adapters.targets[i] ? ".base_layer.weight" : ".weight"));
    }
  }
  return names;
}

// peft's names begin with base_model.model, and what no expression fits is frozen, adapters as well
// (train.py setup_model_and_tokenizer, freeze_layers_except).
void read_unfrozen_beside(RunReading& run, const char* setting,
                          const std::vector<std::string>& patterns) {
  std::vector<std::regex> compiled;
  for (const std::string& pattern : patterns) {
    if (const std::string why = why_no_pattern(axolotl_pattern(pattern)); !why.empty()) {
      refuse(run, std::string(setting) + " " + shown(pattern, Encoding::kUnchecked) +
                      ": no regular expression as ECMAScript has them (" + why + ")");
      return;
    }
    compiled.emplace_back(axolotl_pattern(pattern));
  }
  const auto fits = [&](const std::string& name) {
    return std::ranges::any_of(
        compiled, [&](const std::regex& each) { return std::regex_search(name, each); });
  };
  const AdaptedNames names = adapted_names(run.job);
  const bool trains_others = std::ranges::any_of(names.others, fits);
  if (!trains_others && std::ranges::all_of(names.adapters, fits)) {
    return;  // what adapters train without it
  }
  const bool trains_none = !trains_others && std::ranges::none_of(names.adapters, fits);
  refuse(run,
         std::string(setting) + " " + shown(patterns.front(), Encoding::kUnchecked) +
             (patterns.size() > 1 ? " and " + std::to_string(patterns.size() - 1) + " more" : "") +
             " beside an adapter: names begin with base_model.model there, " +
             (trains_none ? "which none of them fits, so that axolotl freezes the adapters as "
                            "well and trains nothing"
                          : "of which they fit some adapters or frozen weights") +
             "; without unfrozen_parameters the run is described");
}

}  // namespace

void read_unfrozen(const TrainerFile& trainer, RunReading& run) {
  const char* const setting = "unfrozen_parameters";
  const std::vector<std::string> names = items_of(trainer.arguments, setting);
  if (names.empty()) {
    return;
  }
  if (run.job.adapters.rank > 0) {
    read_unfrozen_beside(run, setting, names);
    return;
  }
  freeze_all(run);
  for (const std::string& name : names) { add_rule(run, setting, axolotl_pattern(name), true); }
}

namespace {

// Prefixes of names, and expressions that are found anywhere in them.
void read_swift_rules(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  if (run.job.adapters.rank > 0) {
    return;  // tuner.py: of full training alone
  }
  const auto add_prefixes = [&](const char* name, bool trains) {
    for (const std::string& prefix : items_of(arguments, name)) {
      add_rule(run, name, std::string("^").append(escaped(prefix)), trains);
    }
  };
  const auto add_pattern = [&](const char* name, bool trains) {
    if (const std::string pattern = arguments.text_or(name, ""); !pattern.empty()) {
      add_rule(run, name, pattern, trains);
    }
  };
  add_prefixes("freeze_parameters", false);
  add_pattern("freeze_parameters_regex", false);
  add_prefixes("trainable_parameters", true);
  add_pattern("trainable_parameters_regex", true);
}

// swift/tuners/llamapro.py: copies of layers behind every stride of them, which alone are trained.
void read_llama_pro(const TrainerFile& trainer, RunReading& run) {
  constexpr std::int64_t kMost = 4096;
  const RunArguments& arguments = trainer.arguments;
  std::vector<LayerSpec>& layers = run.job.model.layers;
  const auto count = static_cast<std::int64_t>(layers.size());
  const std::int64_t blocks = arguments.integer_or("llamapro_num_new_blocks", 4, 1, kMost);
  const std::int64_t groups = arguments.integer_or("llamapro_num_groups", blocks, 1, kMost);
  const std::string found = "llamapro_num_new_blocks " + std::to_string(blocks) +
                            " of a model of " + std::to_string(count) + " layers";
  if (count % blocks != 0 || groups > count) {
    refuse(run, found + ": ms-swift wants a number that divides them");
    return;
  }
  const std::int64_t stride = count / groups;
  std::vector<LayerSpec> longer;
  std::string places;
  for (std::int64_t i = 0; i < count; ++i) {
    const LayerSpec& layer = layers[static_cast<std::size_t>(i)];
    longer.push_back(layer);
    if ((i + 1) % stride == 0) {
      places.append(places.empty() ? "" : "|").append(std::to_string(longer.size()));
      longer.push_back(layer);
    }
  }
  layers = std::move(longer);
  freeze_all(run);
  add_rule(run, "llamapro_num_new_blocks", "\\.layers\\.(" + places + ")\\.", true);
  run.notes.push_back(trainer.file + ": tuner_type llamapro: took " +
                      std::to_string(layers.size()) + " layers, of which " +
                      std::to_string(static_cast<std::int64_t>(layers.size()) - count) +
                      " are copies that are trained");
}

}  // namespace

void read_swift_names(const TrainerFile& trainer, RunReading& run) {
  if (tuner_word(trainer) == "llamapro") {
    read_llama_pro(trainer, run);
  } else {
    read_swift_rules(trainer, run);
  }
}

}  // namespace shardplan
