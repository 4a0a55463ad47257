// Megatron-LM's test configurations: MODEL_ARGS and ENV_VARS of a model_config.yaml
// (tests/functional_tests/test_cases/*/*/model_config.yaml); nanotron's configurations, by path
// (examples/config_tiny_llama.yaml: "parallelism.tp"); trainings of transformers' Trainer.
#include "tools/from/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>

#include "data/read/json_message.h"
#include "tools/from/accelerate.h"
#include "tools/from/shell/words.h"
#include "tools/from/swift.h"
#include "tools/from/trainer.h"
#include "tools/from/yaml_scalar.h"

namespace shardplan {
namespace {

InputError wrong(const std::string& file, const YAML::Mark& mark, const std::string& text) {
  return InputError(place(file, std::int64_t{mark.line} + 1, "") + text);
}

constexpr int kMaxMerges = 16;
constexpr std::int64_t kMaxMembers = 1 << 18;  // of all mappings, each as often as it is named

// An alias may stand for ten of the one before it, and so on.
void count_member(std::int64_t& members, const YAML::Mark& mark, const std::string& file) {
  if (++members > kMaxMembers) {
    throw wrong(file, mark,
                "found more than " + std::to_string(kMaxMembers) +
                    " settings, aliases taken as what they stand for, expected fewer");
  }
}

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
// something to them, and "'([0]*1+[1]*60)'" quotes it.
std::string as_shells_read(std::string text) {
  std::erase(text, '\\');
  const bool is_quoted = text.size() > 1 && (text.front() == '\'' || text.front() == '"') &&
                         text.find(text.front(), 1) == text.size() - 1;
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

// envsubst, which Megatron-MoE-ModelZoo's sbatch_benchmarking.sh runs over its configurations; but
// what nothing sets stays as it is. `names` receives every variable.
std::string with_variables(const std::string& text, const std::vector<std::string>& set_words,
                           std::vector<std::string>& names) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  std::string result;
  std::size_t at = 0;
  std::size_t dollar = 0;
  while ((dollar = text.find('$', at)) != std::string::npos) {
    result += text.substr(at, dollar - at);
    const bool has_braces = text.compare(dollar, 2, "${") == 0;
    const std::size_t begin = dollar + (has_braces ? 2 : 1);
    const std::size_t end = std::min(text.find_first_not_of(kLetters, begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const bool is_variable = is_shell_name(name) && (!has_braces || text.compare(end, 1, "}") == 0);
    const auto word = std::ranges::find_if(
        set_words, [&](const std::string& each) { return each.starts_with(name + "="); });
    at = !is_variable ? dollar + 1 : has_braces ? end + 1 : end;
    result += is_variable && word != set_words.end() ? word->substr(name.size() + 1)
                                                     : text.substr(dollar, at - dollar);
    if (is_variable) {
      names.push_back(name);
    }
  }
  return result + text.substr(at);
}

std::vector<std::string> words_of(const YAML::Node& node, const std::string& file) {
  if (node.IsScalar()) {
    return bracketed_words(as_shells_read(node.Scalar()));
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

// `merges` within each other lead here: an anchor may be merged into itself. `members`: read so
// far.
std::vector<Setting> settings_of(const YAML::Node& map, const std::string& file,
                                 const char* heading, int merges, std::int64_t& members) {
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
    count_member(members, member.first.Mark(), file);
    const std::string name = member.first.Scalar();
    if (name == "<<") {  // the members of another mapping; later ones count
      const std::vector<Setting> merged =
          settings_of(member.second, file, heading, merges + 1, members);
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

// What is not quoted is of the type that PyYAML finds in it.
std::string scalar_of(const YAML::Node& node) {
  return node.Tag() == "?" ? as_pyyaml_reads(node.Scalar()) : node.Scalar();
}

// Values one after the other; of stages of data, which are mappings, none has a size.
std::string list_of(const YAML::Node& list) {
  std::string text;
  for (const YAML::Node& item : list) {
    if (!item.IsScalar()) {
      return "[...]";
    }
    text += (text.empty() ? "" : ", ") + scalar_of(item);
  }
  return text;
}

constexpr int kDeepest = 8;  // "optimizer.optimizer_factory.name" is three deep

// `members`: read so far.
void add_section(RunSettings& settings, const YAML::Node& section, const std::string& path,
                 int depth, std::int64_t& members) {
  for (const auto& member : section) {
    count_member(members, member.first.Mark(), settings.file);
    const YAML::Node& node = member.second;
    const std::string name = path + (path.empty() ? "" : ".") + member.first.Scalar();
    if (depth > kDeepest) {
      throw wrong(settings.file, member.first.Mark(),
                  "found mappings more than " + std::to_string(kDeepest) +
                      " deep, expected settings such as parallelism.tp");
    }
    if (node.IsMap()) {
      add_section(settings, node, name, depth + 1, members);
      continue;
    }
    Setting setting{.name = name,
                    .values = {},
                    .place = place(settings.file, std::int64_t{member.first.Mark().line} + 1, "") +
                             name + ": "};
    if (node.IsScalar()) {
      setting.values = {scalar_of(node)};
    } else if (node.IsSequence() && node.size() > 0) {
      setting.values = {list_of(node)};
    }
    if (!setting.values.empty()) {
      settings.arguments.push_back(std::move(setting));
    }
  }
}

YAML::Node loaded(const std::string& text, const std::string& file) {
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& problem) {  // the library's words become ours
    throw wrong(file, problem.mark,
                "found no YAML here: " + shown(problem.msg, Encoding::kUnchecked));
  }
}

bool is_accelerates(const YAML::Node& root) {
  return root.IsMap() && root["compute_environment"] && root["distributed_type"];
}

std::vector<Setting> flat(const YAML::Node& root, const std::string& file) {
  RunSettings settings;
  settings.file = file;
  std::int64_t members = 0;
  add_section(settings, root, "", 1, members);
  return settings.arguments;
}

}  // namespace

std::int64_t num_ranks(const std::vector<Setting>& settings,
                       std::initializer_list<std::string_view> sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 22;
  std::int64_t ranks = 1;
  for (const Setting& setting : settings) {
    if (std::ranges::find(sizes, setting.name) != sizes.end()) {
      const std::string& word = setting.values.front();
      std::int64_t size = 0;
      std::from_chars(word.data(), word.data() + word.size(), size);
      ranks = size > 0 && size <= kMost / std::max<std::int64_t>(ranks, 1) ? ranks * size : 0;
    }
  }
  return ranks;
}

std::vector<Setting> accelerate_file(const std::string& text, const std::string& file) {
  const YAML::Node root = loaded(text, file);
  if (!is_accelerates(root)) {
    throw InputError(file +
                     ": found no configuration of accelerate, expected compute_environment and "
                     "distributed_type");
  }
  return flat(root, file);
}

std::vector<Setting> trainer_file(const std::string& text, const std::string& file,
                                  const std::vector<std::string>& set_words,
                                  std::vector<std::string>& variables) {
  const YAML::Node root = loaded(with_variables(text, set_words, variables), file);
  const bool is_of_others =
      !root.IsMap() || is_accelerates(root) || root["MODEL_ARGS"] || root["parallelism"];
  return is_of_others ? std::vector<Setting>{} : flat(root, file);
}

RunSettings settings_from_yaml(const std::string& text, const std::string& file,
                               const std::vector<std::string>& set_words) {
  RunSettings settings;
  settings.file = file;
  const YAML::Node root = loaded(with_variables(text, set_words, settings.variables), file);
  std::int64_t members = 0;
  const auto is_section = [&root](const char* name) { return root[name] && root[name].IsMap(); };
  if (root.IsMap() && is_section("parallelism") && is_section("tokens")) {
    settings.format = RunFormat::kNanotron;
    add_section(settings, root, "", 1, members);
    settings.num_gpus =
        num_ranks(settings.arguments, {"parallelism.dp", "parallelism.pp", "parallelism.tp",
                                       "parallelism.context_parallel_size"});
    return settings;
  }
  if (is_accelerates(root)) {
    return settings_of_accelerate(flat(root, file), file, file);
  }
  if (root.IsMap() && !root["MODEL_ARGS"]) {
    std::vector<Setting> own = flat(root, file);
    if (is_of_trainer(own)) {
      add_configuration(own, set_words);
      std::vector<std::string> variables = std::move(settings.variables);
      settings = settings_of_program({.own = std::move(own), .file = file, .path = file});
      settings.variables = std::move(variables);
      return settings;
    }
  }
  if (!root.IsMap() || !root["MODEL_ARGS"]) {
    throw InputError(file +
                     ": found no run in it, expected MODEL_ARGS and ENV_VARS of Megatron-LM's "
                     "tests, model, parallelism and tokens of nanotron, or a training of "
                     "transformers' Trainer, TRL, LLaMA-Factory, axolotl or ms-swift");
  }
  const YAML::Node mode = root["MODE"];
  if (mode && mode.IsScalar() && mode.Scalar() != "pretraining") {
    throw wrong(file, mode.Mark(),
                "MODE: found \"" + shown(mode.Scalar(), Encoding::kUnchecked) +
                    "\", expected pretraining: steps of training are estimated");
  }
  settings.arguments = settings_of(root["MODEL_ARGS"], file, "MODEL_ARGS", 0, members);
  if (root["ENV_VARS"]) {
    settings.environment = settings_of(root["ENV_VARS"], file, "ENV_VARS", 0, members);
  }
  return settings;
}

}  // namespace shardplan
