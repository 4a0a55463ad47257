// Parameters of towers, against totals that were published or that transformers 5.17 has.
#include "estimator/plan/tower.h"

#include <doctest/doctest.h>

#include <array>

namespace shardplan {
namespace {

struct Counted {
  TowerSpec tower;
  std::int64_t text_hidden = 0;
  std::int64_t elements = 0;
};

TowerSpec qwen_tower(std::int64_t layers, std::int64_t hidden, std::int64_t ffn,
                     std::int64_t output, std::int64_t mergers) {
  return {.kind = TowerKind::kQwen,
          .layers = layers,
          .hidden = hidden,
          .ffn = ffn,
          .patch = 3 * 2 * 16 * 16,
          .positions = 2304,
          .merged = 4,
          .mergers = mergers,
          .output = output};
}

// data/models/published.csv: totals on the hub with and without the tower.
TEST_CASE("towers have as many parameters as published models have beside their text") {
  const TowerSpec siglip = {.kind = TowerKind::kSiglip,
                            .layers = 27,
                            .hidden = 1152,
                            .ffn = 4304,
                            .patch = 3 * 14 * 14,
                            .positions = 64 * 64};
  const TowerSpec llama4 = {.kind = TowerKind::kLlama4,
                            .layers = 34,
                            .hidden = 1408,
                            .ffn = 5632,
                            .patch = 3 * 14 * 14,
                            .positions = 24 * 24 + 1,
                            .adapted = 4096,
                            .output = 4096};
  const auto towers = std::to_array<Counted>({
      {qwen_tower(12, 768, 3072, 1024, 0), 1024, 100592896},   // Qwen3.5-0.8B
      {qwen_tower(24, 1024, 4096, 2048, 0), 2048, 331416576},  // Qwen3.5-2B
      {qwen_tower(27, 1152, 4304, 5120, 0), 5120, 460730096},  // Qwen3.5-27B
      {qwen_tower(27, 1152, 4304, 3072, 0), 3072, 451290864},  // Qwen3.5-122B-A10B
      {qwen_tower(24, 1024, 4096, 2560, 3), 2560, 415347712},  // Qwen3-VL-4B
      {qwen_tower(27, 1152, 4304, 2048, 3), 2048, 538631408},  // Qwen3-VL-30B-A3B
      {siglip, 2560, 4300079472 - 3880263168},                 // Gemma-3-4B
      {siglip, 5376, 27432406640 - 27009346304},               // Gemma-3-27B
      {llama4, 5120, 871932416},                               // Llama-4-Scout and Maverick
  });
  for (const Counted& each : towers) {
    CHECK(tower_elements(each.tower, each.text_hidden) == each.elements);
  }
}

// Classes of transformers 5.17 from their own configurations, on the meta device.
TEST_CASE("towers of Pixtral and Whisper have the parameters of their classes") {
  const TowerSpec pixtral = {.kind = TowerKind::kPixtral,
                             .layers = 24,
                             .hidden = 1024,
                             .ffn = 4096,
                             .patch = 3 * 14 * 14,
                             .merged = 4};
  const TowerSpec whisper = {.kind = TowerKind::kWhisper,
                             .layers = 32,
                             .hidden = 1280,
                             .ffn = 5120,
                             .patch = 128,
                             .positions = 1500};
  CHECK(tower_elements(pixtral, 5120) == 438958080);
  CHECK(tower_elements(whisper, 3072) == 662134784);
  CHECK(tower_elements({}, 4096) == 0);
}

TEST_CASE("a layer of a tower is named with its place, and knows its linear weights") {
  const auto tensors = tower_tensors(qwen_tower(2, 768, 3072, 1024, 0), 1024);
  std::int64_t of_last = 0;
  std::int64_t linear = 0;
  for (const TowerTensor& tensor : tensors) {
    of_last += tensor.block == 1 ? tensor.elements() : 0;
    linear += tensor.is_linear ? 1 : 0;
  }
  // Two norms, queries, keys and values, the projection, the FFN, all with biases.
  CHECK(of_last ==
        4 * 768 + 768 * 3 * 768 + 3 * 768 + 768 * 768 + 768 + 2 * 768 * 3072 + 3072 + 768);
  CHECK(linear == 2 * 4 + 2);
  CHECK(tensors[3].name == "model.visual.blocks.0.norm1.weight");
}

}  // namespace
}  // namespace shardplan
