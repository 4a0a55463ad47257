// Towers of presets and of whole configurations.
#include "data/models/towers.h"

#include <doctest/doctest.h>

#include <string>

#include "data/read/library.h"
#include "estimator/plan/tower.h"

namespace shardplan {
namespace {

TowerSpec tower_of(const std::string& text) {
  const JsonValue config = parse_json(text, "config.json");
  return read_tower(config, ObjectReader(config, "config.json").string("model_type"),
                    "config.json");
}

}  // namespace

// data/models/published.csv, by what was published with and without the tower.
TEST_CASE("presets have the towers that they were published with") {
  const Library library;
  const auto elements_of = [&](const char* name) {
    const ModelSpec model = library.model(name).model;
    return tower_elements(model.tower, model.hidden);
  };
  CHECK(elements_of("qwen3.5-0.8b") == 100592896);
  CHECK(elements_of("qwen3.5-2b") == 331416576);
  CHECK(elements_of("qwen3.5-4b") == 333514240);
  CHECK(elements_of("qwen3.5-9b") == 456010480);
  CHECK(elements_of("qwen3.5-27b") == 460730096);
  CHECK(elements_of("qwen3.5-35b-a3b") == 446571248);
  CHECK(elements_of("qwen3.5-122b-a10b") == 451290864);
  CHECK(elements_of("qwen3.5-397b-a17b") == 456010480);
  CHECK(elements_of("qwen3-vl-2b") == 406957056);
  CHECK(elements_of("qwen3-vl-4b") == 415347712);
  CHECK(elements_of("qwen3-vl-8b") == 576388336);
  CHECK(elements_of("qwen3-vl-30b-a3b") == 538631408);
  CHECK(elements_of("qwen3-vl-32b") == 595266800);
  CHECK(elements_of("qwen3-vl-235b-a22b") == 576388336);
  CHECK(elements_of("gemma3-4b") == 4300079472 - 3880263168);
  CHECK(elements_of("gemma3-12b") == 12187325040 - 11766034176);
  CHECK(elements_of("gemma3-27b") == 27432406640 - 27009346304);
  CHECK(elements_of("llama4-scout") == 871932416);
  CHECK(elements_of("llama4-maverick") == 871932416);
  CHECK(elements_of("mistral-small-3.1-24b") == 438958080);
  CHECK(elements_of("voxtral-mini-3b") == 662134784);
  // With what is no parameter, and of E2B keys and values of layers that read those of others:
  // data/models/towers.json.
  CHECK(elements_of("gemma-4-12b") == 11959730224 - 48 - 11907350272);
  CHECK(elements_of("gemma-4-31b") == 31273088876 - 60 - 2 * 1152 - 30697345280);
  const std::int64_t shared_keys = 16 * (2 * 256 * 1536 + 256) + 4 * (2 * 512 * 1536 + 512);
  CHECK(elements_of("gemma-4-e2b") == 5123178051 - 35 - shared_keys - 4628569344);
  CHECK(elements_of("llama3-8b") == 0);
  CHECK(elements_of("gemma3-1b") == 0);
}

TEST_CASE("a configuration around a text has the tower of its own sizes, or none") {
  const char* const kText =
      R"(, "text_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,)"
      R"( "num_attention_heads": 4, "vocab_size": 512}})";
  const TowerSpec qwen = tower_of(
      R"({"model_type": "qwen3_vl", "vision_config": {"depth": 3, "hidden_size": 32,)"
      R"( "intermediate_size": 48, "out_hidden_size": 64, "deepstack_visual_indexes": [1]})" +
      std::string(kText));
  CHECK(qwen.kind == TowerKind::kQwen);
  CHECK(qwen.layers == 3);
  CHECK(qwen.mergers == 1);
  CHECK(qwen.patch == 2 * 3 * 16 * 16);
  CHECK(tower_of(R"({"model_type": "mistral3")" + std::string(kText)).kind == TowerKind::kNone);
  CHECK(tower_of(R"({"model_type": "glm4v", "vision_config": {"depth": 3})" + std::string(kText))
            .kind == TowerKind::kNone);
  // SigLIP with its pooling head is not Gemma 3's.
  CHECK(tower_of(R"({"model_type": "gemma3", "vision_config": {"hidden_size": 32})" +
                 std::string(kText))
            .kind == TowerKind::kNone);
}

}  // namespace shardplan
