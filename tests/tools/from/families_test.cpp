// Which published models are refused by name, and why: the layers of no family that the library
// reads, whatever sizes it knows.
#include "tools/from/families.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include <doctest/doctest.h>

#include "data/models/family.h"
#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

bool is_read(const std::string& model_type) {
  const std::span<const ModelFamily> families = model_families();
  return std::ranges::find(families, model_type, &ModelFamily::model_type) != families.end();
}

struct Published {
  const char* name;
  const char* model_type;
};
// Published names of sizes that the library need not know, and what their config.json says.
constexpr std::array kPublished = std::to_array<Published>({
    {"bigcode/starcoder2-15b", "starcoder2"},
    {"stabilityai/stablelm-2-12b", "stablelm"},
    {"nvidia/Nemotron-Mini-4B-Instruct", "nemotron"},
    {"CohereForAI/c4ai-command-r-v01", "cohere"},
    {"swiss-ai/Apertus-70B-2509", "apertus"},
    {"allenai/OLMo-7B-0724-hf", "olmo"},
    {"openai/gpt-oss-20b", "gpt_oss"},
    {"moonshotai/Kimi-Linear-48B-A3B-Base", "kimi_linear"},
    {"MiniMaxAI/MiniMax-M2", "minimax_m2"},
    {"databricks/dbrx-base", "dbrx"},
    {"internlm/internlm2-1_8b", "internlm2"},
    {"state-spaces/mamba-2.8b", "mamba"},
    {"tiiuae/falcon-mamba-7b", "falcon_mamba"},
});

TEST_CASE("layers of a published model are refused by name only where no family has them") {
  for (const Published& each : kPublished) {
    CAPTURE(each.name);
    CHECK(undescribed_family(each.name, {}).empty() == is_read(each.model_type));
  }
}

TEST_CASE("layers that the library knows leave what stands beside them, and how weights lie") {
  CHECK(undescribed_family("state-spaces/mamba-2.8b", {}) == "state-space layers");
  CHECK(undescribed_family("state-spaces/mamba-2.8b", {.layers = true}).empty());
  CHECK(contains(undescribed_family("internlm/internlm-7b", {}), "code of the model's own"));
  CHECK(contains(undescribed_family("google/gemma-3-12b-it", {.layers = true}), "a tower"));
  CHECK(undescribed_family("google/gemma-3-12b-it", {.layers = true, .tower = true}).empty());
  CHECK(contains(undescribed_family("stabilityai/stablelm-2-12b-bnb-4bit", {}), "quantized"));
}

}  // namespace
}  // namespace shardplan
