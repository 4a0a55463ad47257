#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "data/models/config.h"
#include "data/read/library.h"
#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

const std::string kModels = SHARDPLAN_SOURCE_DIR "/data/models/";

// published: stated somewhere; derived: stated for more than the text model, less what is stated
// of the rest; computed: by hand from the shapes.
struct PublishedCount {
  std::int64_t parameters = 0;
  std::string kind;
  std::string source;
};

// name,parameters,kind,source,note; only the note may hold commas.
std::map<std::string, PublishedCount> published_counts() {
  std::ifstream file(kModels + "published.csv");
  REQUIRE(file.good());
  std::map<std::string, PublishedCount> counts;
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "name,parameters,kind,source,note");
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    std::string parameters;
    PublishedCount count;
    std::getline(fields, name, ',');
    std::getline(fields, parameters, ',');
    std::getline(fields, count.kind, ',');
    std::getline(fields, count.source, ',');
    count.parameters = std::stoll(parameters);
    counts[name] = count;
  }
  return counts;
}

std::set<std::string> shipped_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    const std::filesystem::path stem = entry.path().stem();
    if (entry.path().extension() == ".json" && stem != "aliases" && stem != "towers") {
      names.insert(entry.path().stem().string());
    }
  }
  return names;
}

ModelConfig shipped(const std::string& name) {
  const std::string file = name + ".json";
  return read_model_config(parse_json(read_text_file(kModels + file), file), name, file,
                           UnknownKeys::kRefuse);
}

// The multi-token module stores embedding and head a second time.
std::int64_t count_with_module(const ModelSpec& model) {
  return count_parameters(model) + count_mtp_parameters(model) + 2 * model.vocab * model.hidden;
}

// Of models of text and images the text is counted, which is said.
bool says_nothing_else(const ModelConfig& config) {
  return std::ranges::all_of(config.warnings, [](const std::string& warning) {
    return warning.find("counts the text model only") != std::string::npos;
  });
}

TEST_CASE("every shipped model has exactly its published number of parameters") {
  std::int64_t num_published = 0;
  for (const auto& [key, count] : published_counts()) {
    const std::string& name = key;  // clang 14 cannot capture a structured binding
    CAPTURE(name);
    const ModelConfig config = shipped(name);
    CHECK(count_parameters(config.model) == count.parameters);
    CHECK(says_nothing_else(config));
    CHECK(config.model.name == name);
    CHECK((count.kind == "computed" || !count.source.empty()));
    num_published += count.kind == "published" ? 1 : 0;
  }
  CHECK(num_published >= 100);
}

TEST_CASE("every shipped model has a row of published.csv, and every row a model") {
  std::set<std::string> rows;
  for (const auto& [name, count] : published_counts()) { rows.insert(name); }
  CHECK(rows == shipped_names());
}

TEST_CASE("every alias names a shipped model and hides none") {
  const JsonValue aliases = parse_json(read_text_file(kModels + "aliases.json"), "aliases.json");
  const std::set<std::string> names = shipped_names();
  std::map<std::string, std::string> targets;
  for (const auto& [key, target] : aliases.members) {
    const std::string& alias = key;
    CAPTURE(alias);
    CHECK(names.contains(target.string));
    CHECK_FALSE(names.contains(alias));
    targets[alias] = target.string;
  }
  CHECK(targets["llama3-405b"] == "llama3.1-405b");
}

TEST_CASE("DeepSeek-V3 with its multi-token module is all that its published file holds") {
  const ModelSpec model = shipped("deepseek-v3").model;
  CHECK(model.num_mtp_layers == 1);
  // huggingface.co safetensors of deepseek-ai/DeepSeek-V3: F8_E4M3 680571043840, BF16 3918786560,
  // F32 41555600, total 684531386000. Of the fp32 numbers all are scales of FP8 blocks but the
  // 256 router biases of 59 layers.
  const std::int64_t scales = 41'555'600 - std::int64_t{59} * 256;
  CHECK(count_with_module(model) + scales == 684'531'386'000);
}

// huggingface.co safetensors totals of zai-org.
TEST_CASE("GLM-4.5 with its multi-token module is all that its published files hold") {
  const std::map<std::string, std::int64_t> totals = {{"glm-4.5", 358'337'791'296},
                                                      {"glm-4.5-air", 110'468'824'832}};
  for (const auto& [key, total] : totals) {
    const std::string& name = key;  // clang 14 cannot capture a structured binding
    CAPTURE(name);
    CHECK(count_with_module(shipped(name).model) == total);
  }
}

}  // namespace
}  // namespace shardplan
