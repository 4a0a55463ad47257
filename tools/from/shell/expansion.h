// What a shell's expansion leaves open.
#pragma once

#include <string>
#include <string_view>

namespace shardplan {

std::string marked(char mark, std::string_view opening, const std::string& text);

}  // namespace shardplan
