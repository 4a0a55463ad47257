// A plain scalar of YAML as PyYAML's SafeLoader reads it (yaml/resolver.py, yaml/constructor.py of
// PyYAML 6): YAML 1.1 with its own floats.
#pragma once

#include <string>

namespace shardplan {

// "true" and "false" for yes, no, on and off in three cases each; integers in decimal for 16_384,
// 0x10, 0b10, 010 and 1:30; floats without underscores; all else, as 1e-4, is a string and stays.
std::string as_pyyaml_reads(const std::string& plain);

}  // namespace shardplan
