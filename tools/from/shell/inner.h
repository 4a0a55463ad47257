// Words of a script that start other scripts, or nothing.
#pragma once

#include <string>

namespace shardplan {

std::string shell_program(const std::string& word);  // "/bin/bash" -> "bash"
bool starts_nothing(const std::string& word);        // such as echo, whatever its arguments say

}  // namespace shardplan
