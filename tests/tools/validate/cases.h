// Small case lines for `validate`, and what its result lines say.
#pragma once

#include <string>
#include <vector>

#include "data/read/json_reader.h"

namespace shardplan {

struct SmallCase {
  std::string id = "one";
  std::int64_t gpus = 1;
  std::string plan = R"("tp":1)";  // members of the plan object
  std::int64_t micro_batch = 1;
  std::int64_t sequence_length = 16;
  std::string framework = "native";
  bool has_experts = false;
};
// A Llama of two layers and 32 wide, or one with four experts.
std::string case_line(const SmallCase& small);
std::string case_lines(const std::vector<SmallCase>& cases);

// A member by its path of names and indices; a null value where there is none.
const JsonValue& member(const JsonValue& value, const std::vector<std::string>& path);

}  // namespace shardplan
