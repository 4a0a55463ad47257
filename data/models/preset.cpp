// Models by preset name, alias or path.
#include <algorithm>
#include <array>
#include <filesystem>

#include "data/read/json_message.h"
#include "data/read/library.h"

namespace shardplan {
namespace {

// Endings of published names that change weights and tokenizers, not sizes.
constexpr std::array<std::string_view, 12> kVariants = {"-instruct", "-chat", "-base", "-thinking",
                                                        "-it",       "-pt",   "-hf",   "-2507",
                                                        "-0528",     "-0324", "-v0.1", "-bf16"};

}  // namespace

ModelConfig Library::model(const std::string& name_or_path, UnknownKeys unknown_keys,
                           const std::string& where) const {
  const ModelFile file = model_file(name_or_path, where);
  return read_model_config(file.config.json, file.name, file.config.file, unknown_keys);
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
    return {.name = std::filesystem::path(name_or_path).stem().string(),
            .config = {.json = parse_text(read_text_file(name_or_path, where), name_or_path),
                       .file = name_or_path}};
  }
  const std::string name = published_model(name_or_path);
  if (name.empty()) {
    std::vector<std::string> known = model_names();
    if (has(std::string(kModelAliasesPath))) {
      const JsonFile& aliases = parse(std::string(kModelAliasesPath));
      for (const auto& [alias, preset] : aliases.json.members) { known.push_back(alias); }
    }
    throw InputError((where.empty() ? "model: " : where) + "found \"" +
                     shown(name_or_path, Encoding::kUnchecked) +
                     "\", expected a model preset (see `shardplan list models`) or a path to a "
                     "config.json" +
                     suggestion(in_lower_case(name_or_path), known));
  }
  return {.name = name, .config = parse("models/" + name + ".json")};
}

std::string Library::published_model(const std::string& name) const {
  std::string rest = in_lower_case(name);
  rest.erase(rest.find_last_not_of('/') + 1);
  rest.erase(0, rest.rfind('/') + 1);
  if (rest.starts_with("meta-")) {
    rest.erase(0, std::string_view("meta-").size());
  }
  const std::vector<std::string> known = model_names();
  for (bool is_cut = true; is_cut;) {
    std::string preset = rest;
    if (has(std::string(kModelAliasesPath))) {
      const JsonFile& aliases = parse(std::string(kModelAliasesPath));
      preset = ObjectReader(aliases.json, aliases.file).string_or(rest, rest);
    }
    if (std::ranges::find(known, preset) != known.end()) {
      return preset;
    }
    is_cut = false;
    for (const std::string_view ending : kVariants) {
      if (!is_cut && rest.ends_with(ending)) {
        rest.resize(rest.size() - ending.size());
        is_cut = true;
      }
    }
  }
  return "";
}

}  // namespace shardplan
