// Megatron-LM's test configurations: MODEL_ARGS and ENV_VARS of a model_config.yaml
// (tests/functional_tests/test_cases/*/*/model_config.yaml).
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "data/json_message.h"
#include "tools/from_file.h"

namespace shardplan {
namespace {

InputError wrong(const std::string& file, const YAML::Mark& mark, const std::string& text) {
  return InputError(place(file, std::int64_t{mark.line} + 1, "") + text);
}

constexpr int kMaxMerges = 16;

// A plain word; "true" in quotes is a string.
bool is_plain(const YAML::Node& node, std::string_view word) {
  return node.IsScalar() && node.Tag() != "!" && node.Scalar() == word;
}

// YAML 1.2 writes booleans in three ways, and so they are read there.
bool is_boolean(const YAML::Node& node, const std::vector<std::string_view>& spellings) {
  return std::ranges::any_of(spellings,
                             [&](std::string_view word) { return is_plain(node, word); });
}

// The tests hand the values to two shells: "Et\\\\|\\\\(tt\\\\|\\\\)*6L" escapes what means
// something to them.
std::string without_escapes(std::string text) {
  std::erase(text, '\\');
  return text;
}

std::vector<std::string> words_of(const YAML::Node& node, const std::string& file) {
  if (node.IsScalar()) {
    return bracketed_words(without_escapes(node.Scalar()));
  }
  std::vector<std::string> words;
  if (!node.IsSequence()) {
    throw wrong(file, node.Mark(), "found a mapping, expected a value or a list of values");
  }
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      throw wrong(file, item.Mark(), "found a nested list, expected a value");
    }
    words.push_back(item.Scalar());
  }
  return words;
}

// `merges` within each other lead here: an anchor may be merged into itself.
std::vector<Setting> settings_of(const YAML::Node& map, const std::string& file,
                                 const char* heading, int merges) {
  std::vector<Setting> settings;
  if (!map.IsMap()) {
    throw wrong(file, map.Mark(), std::string(heading) + ": found no mapping, expected one");
  }
  if (merges > kMaxMerges) {
    throw wrong(file, map.Mark(),
                "found more than " + std::to_string(kMaxMerges) +
                    " merges (<<) within each other, expected fewer");
  }
  for (const auto& member : map) {
    const std::string name = member.first.Scalar();
    if (name == "<<") {  // the members of another mapping; later ones count
      const std::vector<Setting> merged = settings_of(member.second, file, heading, merges + 1);
      settings.insert(settings.end(), merged.begin(), merged.end());
      continue;
    }
    if (member.second.IsNull() || is_boolean(member.second, {"false", "False", "FALSE"})) {
      continue;
    }
    Setting setting{
        .name = name,
        .values = {},
        .place = place(file, std::int64_t{member.first.Mark().line} + 1, "") + name + ": "};
    const bool is_argument = name.starts_with("--");
    if (!(is_argument && is_boolean(member.second, {"true", "True", "TRUE"}))) {
      setting.values = words_of(member.second, file);
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace

RunSettings settings_from_yaml(const std::string& text, const std::string& file) {
  RunSettings settings;
  settings.file = file;
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& problem) {  // the library's words become ours
    throw wrong(file, problem.mark, "found no YAML here: " + problem.msg);
  }
  if (!root.IsMap() || !root["MODEL_ARGS"]) {
    throw InputError(file +
                     ": found no MODEL_ARGS, expected a mapping with MODEL_ARGS and ENV_VARS");
  }
  const YAML::Node mode = root["MODE"];
  if (mode && mode.IsScalar() && mode.Scalar() != "pretraining") {
    throw wrong(file, mode.Mark(),
                "MODE: found \"" + shown(mode.Scalar(), Encoding::kUnchecked) +
                    "\", expected pretraining: steps of training are estimated");
  }
  settings.arguments = settings_of(root["MODEL_ARGS"], file, "MODEL_ARGS", 0);
  if (root["ENV_VARS"]) {
    settings.environment = settings_of(root["ENV_VARS"], file, "ENV_VARS", 0);
  }
  return settings;
}

}  // namespace shardplan
