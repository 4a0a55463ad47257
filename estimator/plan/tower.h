// The parameters of a tower for pictures or sound, by the class that has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/tower_spec.h"

namespace shardplan {

struct TowerTensor {
  std::string name;  // in the class with the tower: "model.visual.blocks.0.attn.qkv.weight"
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  bool is_linear = false;   // the weight of a linear layer
  std::int64_t block = -1;  // which layer of the tower it is of; -1: of none

  std::int64_t elements() const { return rows * columns; }
};

// In the order in which the modules have them; `text_hidden`: the text model's width. Empty without
// a tower.
std::vector<TowerTensor> tower_tensors(const TowerSpec& tower, std::int64_t text_hidden);
std::int64_t tower_elements(const TowerSpec& tower, std::int64_t text_hidden);

}  // namespace shardplan
