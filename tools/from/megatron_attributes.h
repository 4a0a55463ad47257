// Megatron-LM's arguments by the attributes that they become, as a log prints them and other
// launchers set them: tensor_model_parallel_size, bias_swiglu_fusion.
#pragma once

#include <string>

#include "data/arguments/arguments.h"

namespace shardplan {

// The argument that gives an attribute; "" where its switch was not given. "bias_swiglu_fusion" is
// of --no-bias-swiglu-fusion. `value` of a switch: "True" or "False".
std::string argument_of_attribute(const std::string& name, const std::string& value,
                                  const ArgumentTable& table);

}  // namespace shardplan
