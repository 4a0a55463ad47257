// Words of a script that declare variables.
#pragma once

#include <string>

namespace shardplan {

bool is_declaration(const std::string& word);  // export, local and their like

}  // namespace shardplan
