// Two texts line by line, as `diff -u` shows them.
#pragma once

#include <string>

namespace shardplan {

// "" where they are equal. `old_name`, `new_name`: as the heading has them.
std::string text_difference(const std::string& old_text, const std::string& new_text,
                            const std::string& old_name, const std::string& new_name);

}  // namespace shardplan
