#include "tools/export/config_numbers.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace shardplan {
namespace {

// nullptr where it is not there, or null.
const JsonValue* member_of(const JsonValue& object, std::string_view name) {
  const auto found = std::ranges::find(object.members, name, &JsonMember::name);
  return found == object.members.end() || found->value.kind == JsonKind::kNull ? nullptr
                                                                               : &found->value;
}

// The first that is a number.
std::optional<double> number_of(const JsonValue& object,
                                std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const JsonValue* const value = member_of(object, name);
    if (value != nullptr && (value->kind == JsonKind::kInteger || value->kind == JsonKind::kReal)) {
      return value->real;
    }
  }
  return std::nullopt;
}

// transformers 4 has rope_scaling beside rope_theta; 5 has all of it in rope_parameters
// (modeling_rope_utils.py).
void read_positions(const JsonValue& config, ConfigNumbers& numbers) {
  numbers.rope_theta = number_of(config, {"rope_theta"});
  numbers.partial_rotary_factor = number_of(config, {"partial_rotary_factor"});
  for (const char* const name : {"rope_parameters", "rope_scaling"}) {
    const JsonValue* const inner = member_of(config, name);
    if (inner == nullptr) {
      continue;
    }
    if (!numbers.rope_theta) {
      numbers.rope_theta = number_of(*inner, {"rope_theta"});
    }
    const JsonValue* type = member_of(*inner, "rope_type");
    type = type == nullptr ? member_of(*inner, "type") : type;
    if (type != nullptr && type->string == "llama3") {
      numbers.rope_scaling_factor = number_of(*inner, {"factor"});
    }
  }
}

}  // namespace

ConfigNumbers config_numbers(const JsonValue& config) {
  ConfigNumbers numbers;
  read_positions(config, numbers);
  numbers.norm_epsilon =
      number_of(config, {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"});
  numbers.swiglu_limit = number_of(config, {"swiglu_limit"});
  numbers.routed_scaling_factor = number_of(config, {"routed_scaling_factor"});
  if (const JsonValue* const value = member_of(config, "norm_topk_prob")) {
    numbers.normalizes_topk = value->boolean;
  }
  return numbers;
}

}  // namespace shardplan
