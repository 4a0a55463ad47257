#include "tools/export/text_difference.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shardplan {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// A line that stays (' '), goes ('-') or comes ('+').
struct Step {
  char mark = ' ';
  const std::string* line = nullptr;
};

// By the longest common run of lines, from the end on: lengths[i][j] is of what begins at i and j.
std::vector<Step> steps_between(const Lines& before, const Lines& after) {
  const std::size_t rows = before.size();
  const std::size_t columns = after.size();
  std::vector<std::vector<std::int32_t>> lengths(rows + 1,
                                                 std::vector<std::int32_t>(columns + 1, 0));
  for (std::size_t i = rows; i-- > 0;) {
    for (std::size_t j = columns; j-- > 0;) {
      lengths[i][j] = before[i] == after[j] ? lengths[i + 1][j + 1] + 1
                                            : std::max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  std::vector<Step> steps;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < rows || j < columns) {
    if (i < rows && j < columns && before[i] == after[j]) {
      steps.push_back({.mark = ' ', .line = &before[i++]});
      ++j;
    } else if (j == columns || (i < rows && lengths[i + 1][j] >= lengths[i][j + 1])) {
      steps.push_back({.mark = '-', .line = &before[i++]});
    } else {
      steps.push_back({.mark = '+', .line = &after[j++]});
    }
  }
  return steps;
}

bool is_near_change(const std::vector<Step>& steps, std::size_t at) {
  constexpr std::size_t kContext = 3;
  const std::size_t begin = at < kContext ? 0 : at - kContext;
  const std::size_t end = std::min(at + kContext + 1, steps.size());
  return std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(begin),
                     steps.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Step& step) { return step.mark != ' '; });
}

std::string range_text(std::size_t first, std::size_t count) {
  return std::to_string(count == 0 ? first : first + 1) + "," + std::to_string(count);
}

}  // namespace

std::string text_difference(const std::string& old_text, const std::string& new_text,
                            const std::string& old_name, const std::string& new_name) {
  if (old_text == new_text) {
    return "";
  }
  const Lines before = lines_of(old_text);
  const Lines after = lines_of(new_text);
  const std::vector<Step> steps = steps_between(before, after);
  std::string text = "--- " + old_name + "\n+++ " + new_name + "\n";
  std::size_t old_line = 0;
  std::size_t new_line = 0;
  for (std::size_t at = 0; at < steps.size();) {
    if (!is_near_change(steps, at)) {
      ++old_line, ++new_line, ++at;
      continue;
    }
    std::string hunk;
    const std::size_t old_first = old_line;
    const std::size_t new_first = new_line;
    for (; at < steps.size() && is_near_change(steps, at); ++at) {
      old_line += steps[at].mark != '+' ? 1 : 0;
      new_line += steps[at].mark != '-' ? 1 : 0;
      hunk += steps[at].mark + *steps[at].line + "\n";
    }
    text += "@@ -" + range_text(old_first, old_line - old_first) + " +" +
            range_text(new_first, new_line - new_first) + " @@\n" + hunk;
  }
  return text;
}

}  // namespace shardplan
