#include <doctest/doctest.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "data/models/config.h"
#include "data/models/family.h"
#include "data/read/text_file.h"
#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

// A line of published_configs.jsonl or class_defaults.jsonl: what of a config.json decides the
// shape, where it is published, and its parameters, counted by transformers on the meta device or
// as the line says; -1: nobody counted them. A bias that steers the choice of experts is a buffer
// there, and here a parameter in some families (MoeSpec::router_bias).
struct CountedConfig {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t choice_biases = 0;
  JsonValue config;
};

std::vector<CountedConfig> counted_configs(const std::string& file) {
  std::istringstream lines(read_text_file(SHARDPLAN_SOURCE_DIR "/tests/data/fixtures/" + file));
  std::vector<CountedConfig> counted;
  for (std::string line; std::getline(lines, line);) {
    const JsonValue json = parse_json(line, file, std::ssize(counted) + 1);
    ObjectReader fields(json, file);
    counted.push_back({.name = fields.string("name"),
                       .parameters = fields.integer_or("parameters", -1, 0, INT64_MAX),
                       .choice_biases = fields.integer("choice_biases", 0, INT64_MAX),
                       .config = fields.value("config")});
    CHECK_FALSE(fields.string("source").empty());
    fields.ignore("counted_by");
    fields.finish();
  }
  return counted;
}

bool is_exact(const CountedConfig& counted) {
  const ModelConfig read =
      read_model_config(counted.config, counted.name, counted.name, UnknownKeys::kWarn);
  const std::int64_t parameters = count_parameters(read.model);
  return parameters == counted.parameters ||
         parameters == counted.parameters + counted.choice_biases;
}

TEST_CASE("public configurations have the parameters that transformers counts") {
  const std::vector<CountedConfig> configs = counted_configs("published_configs.jsonl");
  std::int64_t num_exact = 0;
  for (const CountedConfig& counted : configs) {
    CAPTURE(counted.name);
    if (counted.parameters >= 0) {
      CHECK(is_exact(counted));
      ++num_exact;
    } else if (counted.name == "moonshotai/Kimi-K3") {
      CHECK_THROWS_AS(is_exact(counted), InputError);
    } else {
      CHECK_NOTHROW(is_exact(counted));
    }
  }
  CHECK(configs.size() >= 120);
  CHECK(num_exact * 100 >= 95 * std::ssize(configs));
}

TEST_CASE("the defaults of every class have the parameters that transformers counts") {
  for (const CountedConfig& counted : counted_configs("class_defaults.jsonl")) {
    CAPTURE(counted.name);
    CHECK(is_exact(counted));
  }
}

TEST_CASE("no two families have one model_type") {
  std::set<std::string_view> types;
  for (const ModelFamily& family : model_families()) {
    CAPTURE(family.model_type);
    CHECK(types.insert(family.model_type).second);
  }
}

}  // namespace
}  // namespace shardplan
