// Models by preset name, alias or path.
#include <filesystem>

#include "data/json_message.h"
#include "data/library.h"

namespace shardplan {

ModelConfig Library::model(const std::string& name_or_path, UnknownKeys unknown_keys,
                           const std::string& where) const {
  const ModelFile file = model_file(name_or_path, where);
  return read_model_config(file.config.json, file.name, file.config.file, unknown_keys);
}

ModelFile Library::model_file(const std::string& name_or_path, const std::string& where) const {
  if (is_path(name_or_path)) {
    return {.name = std::filesystem::path(name_or_path).stem().string(),
            .config = {.json = parse_text(read_text_file(name_or_path, where), name_or_path),
                       .file = name_or_path}};
  }
  std::string name = in_lower_case(name_or_path);
  std::vector<std::string> known = model_names();
  if (!has("models/" + name + ".json") && has(std::string(kModelAliasesPath))) {
    const JsonFile& aliases = parse(std::string(kModelAliasesPath));
    ObjectReader reader(aliases.json, aliases.file);
    for (const auto& [alias, preset] : aliases.json.members) { known.push_back(alias); }
    name = reader.string_or(name, name);
  }
  if (!has("models/" + name + ".json")) {
    throw InputError((where.empty() ? "model: " : where) + "found \"" +
                     shown(name_or_path, Encoding::kUnchecked) +
                     "\", expected a model preset (see `shardplan list models`) or a path to a "
                     "config.json" +
                     suggestion(name, known));
  }
  return {.name = name, .config = parse("models/" + name + ".json")};
}

}  // namespace shardplan
