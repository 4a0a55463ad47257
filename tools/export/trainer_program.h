// train.py: a program around transformers' Trainer that takes all its settings from its command
// line.
#pragma once

#include <string_view>

namespace shardplan {

std::string_view trainer_program();

}  // namespace shardplan
