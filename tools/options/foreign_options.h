// Options that a command does not have: misspelt, another command's, or a training framework's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/read/input_error.h"

namespace shardplan {

// Names every unknown option among the arguments, and in the hint what stands for it here. What
// options of Megatron-LM, torchtitan, transformers and DeepSpeed stand for is what the readers of
// their files make of them.
InputError unknown_options(std::string_view command, const std::vector<std::string>& arguments);

}  // namespace shardplan
