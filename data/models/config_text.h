// The text of a config.json, as Python's json module writes it.
#pragma once

#include <string>

namespace shardplan {

// The text with a number in place of each Infinity among the bounds of time_step_limit, which
// Mamba's configurations have and JSON has not; places stay what they are. It decides nothing here.
std::string with_finite_steps(std::string text);

}  // namespace shardplan
