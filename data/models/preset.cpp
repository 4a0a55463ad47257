// Models by preset name, alias or path.
#include <algorithm>
#include <array>
#include <filesystem>

#include "data/models/config_text.h"
#include "data/models/towers.h"
#include "data/read/json_message.h"
#include "data/read/library.h"

namespace shardplan {
namespace {

// Words of published names that change weights, tokenizers and lengths, not sizes.
constexpr std::array kVariants = std::to_array<std::string_view>(
    {"instruct", "chat", "base",  "think", "thinking", "reasoning",  "sft",
     "dpo",      "it",   "pt",    "hf",    "bf16",     "fp16",       "fp8",
     "dynamic",  "fp4",  "nvfp4", "mxfp4", "1m",       "dequantized"});

// Endings of checkpoints that bitsandbytes has packed in 4 bits, in bytes or in tensors of bf16.
constexpr std::array<std::string_view, 3> k4BitEndings = {"-bnb-4bit", "-bnb-nf4", "-bnb-nf4-bf16"};

// "2507" of a release in July 2025.
bool is_date(const std::string& word) {
  return word.size() == 4 && word.find_first_not_of("0123456789") == std::string::npos;
}

// "Meta-Llama-3-8B" of an organisation, without its name: "llama-3-8b".
std::string bare_name(const std::string& name) {
  std::string rest = in_lower_case(name);
  rest.erase(rest.find_last_not_of('/') + 1);
  rest.erase(0, rest.rfind('/') + 1);
  for (char& letter : rest) { letter = letter == '_' || letter == ' ' ? '-' : letter; }
  rest = unpacked_name(rest);
  for (const std::string_view organisation : {"meta-", "nvidia-"}) {
    if (rest.starts_with(organisation)) {
      return rest.substr(organisation.size());
    }
  }
  return rest;
}

// "Qwen/Qwen3-8B": an organisation and its model.
bool is_published_name(const std::string& name) {
  return std::ranges::count(name, '/') == 1 && name.find_first_of("./~") > 0 &&
         name.back() != '/' && !name.ends_with(".json");
}

// The name without the words that are dropped, wherever they stand: "llama-2-7b-chat-hf".
template <class Dropped>
std::string without_words(const std::string& name, Dropped is_dropped) {
  std::string rest;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('-', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    if (!is_dropped(word)) {
      rest += (rest.empty() ? "" : "-") + word;
    }
    begin = end + 1;
  }
  return rest;
}

// `like`: a did-you-mean, or nothing.
InputError unknown_model(const std::string& found, const std::string& where,
                         const std::string& like) {
  return InputError(
      (where.empty() ? "model: " : where) + "found \"" + shown(found, Encoding::kUnchecked) +
          "\", which is not shipped, and nothing is downloaded; expected a name that `shardplan "
          "list models` has or the path of a config.json" +
          like,
      "save the config.json that is published beside the weights, and give --model config.json");
}

// "70b": the models of this size.
bool is_size(const std::string& word) {
  return word.size() > 1 && word.ends_with('b') &&
         word.find_first_not_of("0123456789.") == word.size() - 1;
}

std::string models_like(const std::string& found, const std::vector<std::string>& presets,
                        const std::vector<std::string>& known) {
  const std::string word = bare_name(found);
  if (!is_size(word)) {
    return suggestion(word, known);
  }
  std::vector<std::string> sized;
  for (const std::string& name : presets) {
    if (name.ends_with("-" + word)) {
      sized.push_back(name);
    }
  }
  return sized.empty() ? "" : "; of this size: " + joined(sized);
}

}  // namespace

bool names_4bit_checkpoint(const std::string& model) {
  return unpacked_name(model).size() < model.size();
}

std::string unpacked_name(const std::string& model) {
  const std::string name = in_lower_case(model);
  const auto* const ending = std::ranges::find_if(
      k4BitEndings, [&](std::string_view each) { return name.ends_with(each); });
  if (ending == k4BitEndings.end() || name.ends_with("-unsloth-bnb-4bit")) {
    return model;
  }
  return model.substr(0, model.size() - ending->size());
}

ModelConfig Library::model(const std::string& name_or_path, UnknownKeys unknown_keys,
                           const std::string& where) const {
  const ModelFile file = model_file(name_or_path, where);
  ModelConfig config =
      read_model_config(file.config.json, file.name, file.config.file, unknown_keys);
  if (file.config.file == file_of("models/" + file.name + ".json")) {
    add_tower(config.model);
  }
  return config;
}

// Presets are text models; towers.json has the towers that some were published with.
void Library::add_tower(ModelSpec& model) const {
  if (!has(std::string(kTowersPath))) {
    return;
  }
  const JsonFile& towers = parse(std::string(kTowersPath));
  ObjectReader names(towers.json, towers.file);
  if (names.has(model.name)) {
    const JsonValue& tower = names.value(model.name);
    const std::string type = ObjectReader(tower, towers.file).string("model_type");
    model.tower = read_tower(tower, type, towers.file);
  }
}

ModelFile Library::model_file(const std::string& name_or_path, const std::string& where) const {
  if (is_path(name_or_path)) {
    std::error_code failed;
    const std::string preset = std::filesystem::exists(name_or_path, failed)
                                   ? std::string()
                                   : published_model(name_or_path);
    if (!preset.empty()) {
      return {.name = preset, .config = parse("models/" + preset + ".json")};
    }
    if (is_published_name(name_or_path) && !std::filesystem::exists(name_or_path, failed)) {
      throw unknown_model(name_or_path, where, "");
    }
    return {.name = std::filesystem::path(name_or_path).stem().string(),
            .config = {.json = parse_text(with_finite_steps(read_text_file(name_or_path, where)),
                                          name_or_path),
                       .file = name_or_path}};
  }
  const std::string name = published_model(name_or_path);
  if (name.empty()) {
    std::vector<std::string> known = model_names();
    if (has(std::string(kModelAliasesPath))) {
      const JsonFile& aliases = parse(std::string(kModelAliasesPath));
      for (const auto& [alias, preset] : aliases.json.members) { known.push_back(alias); }
    }
    throw unknown_model(name_or_path, where, models_like(name_or_path, model_names(), known));
  }
  return {.name = name, .config = parse("models/" + name + ".json")};
}

std::string Library::published_model(const std::string& name) const {
  const std::vector<std::string> known = model_names();
  const auto preset_of = [&](const std::string& words) {
    std::string preset = words;
    if (has(std::string(kModelAliasesPath))) {
      const JsonFile& aliases = parse(std::string(kModelAliasesPath));
      preset = ObjectReader(aliases.json, aliases.file).string_or(words, words);
    }
    return std::ranges::find(known, preset) == known.end() ? std::string() : preset;
  };
  const std::string whole = bare_name(name);
  const std::string model = without_words(whole, [](const std::string& word) {
    return std::ranges::find(kVariants, word) != kVariants.end();
  });
  // A release's own name goes before that of its line, whose first version is bare.
  const std::string undated = without_words(model, is_date);
  const std::string first =
      undated.ends_with("-v0.1")
          ? undated.substr(0, undated.size() - std::string_view("-v0.1").size())
          : undated;
  for (const std::string& each : {whole, model, undated, first}) {
    if (std::string preset = preset_of(each); !preset.empty()) {
      return preset;
    }
  }
  return "";
}

}  // namespace shardplan
