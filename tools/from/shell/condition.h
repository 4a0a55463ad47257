// The truth of what stands between [[ and ]], or behind `test`.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace shardplan {

enum class Truth { kFalse, kTrue, kUnknown };

struct ShellTruth {
  Truth truth = Truth::kUnknown;
  std::set<std::string> missing = {};  // variables that nothing sets, taken as empty
};
Truth negated(Truth truth);

bool compares_numbers(const std::string& word);  // -eq and its like

// `*`, `?` and [...] as a shell's `case` matches them; a backslash takes their meaning away.
bool matches_pattern(const std::string& text, const std::string& pattern);

// Words with marks (known_word); operators are words, too, and what stands behind = or != is a
// pattern. What asks for files is unknown.
ShellTruth shell_condition(const std::vector<std::string>& words);

}  // namespace shardplan
