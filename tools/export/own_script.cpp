#include "tools/export/own_script.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tools/export/script.h"
#include "tools/options/command_words.h"

namespace shardplan {
namespace {

// Arguments that say the same in other words, of which Megatron-LM takes one.
struct Rivals {
  std::string_view name;
  std::string_view other;
};
constexpr auto kRivals = std::to_array<Rivals>({
    {.name = "--num-virtual-stages-per-pipeline-rank",
     .other = "--num-layers-per-virtual-pipeline-stage"},
    {.name = "--num-virtual-stages-per-pipeline-rank", .other = "--pipeline-model-parallel-layout"},
    {.name = "--pipeline-model-parallel-layout", .other = "--num-virtual-stages-per-pipeline-rank"},
    {.name = "--pipeline-model-parallel-layout",
     .other = "--num-layers-per-virtual-pipeline-stage"},
    {.name = "--recompute-granularity", .other = "--recompute-activations"},
    {.name = "--attention-backend", .other = "--use-flash-attn"},
    {.name = "--micro-batch-size", .other = "--batch-size"},
});

bool is_word_end(const std::string& text, std::size_t at) {
  return at >= text.size() ||
         std::string_view(" \t\n\r\\\"')=").find(text[at]) != std::string_view::npos;
}

// Where the name stands as a word, from `begin` on; npos where it does not.
std::size_t find_word(const std::string& text, std::string_view name, std::size_t begin) {
  for (std::size_t at = text.find(name, begin); at != std::string::npos;
       at = text.find(name, at + 1)) {
    const bool starts =
        at == 0 || std::string_view(" \t\n\r\"'(").find(text[at - 1]) != std::string_view::npos;
    const std::size_t line = text.rfind('\n', at) + 1;  // npos + 1 is 0
    const std::size_t mark = text.find_first_not_of(" \t", line);
    if (starts && is_word_end(text, at + name.size()) && text[mark] != '#') {
      return at;
    }
  }
  return std::string::npos;
}

// The words behind a name up to the next argument or the end of the line: [begin, end).
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};
Span values_behind(const std::string& text, std::size_t at) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t=", at), text.size());
  std::size_t end = begin;
  while (end < text.size() && text[end] != '\n' && text[end] != ')') {
    const char letter = text[end];
    if (letter == '\\' && end + 1 < text.size() && text[end + 1] == '\n') {
      break;
    }
    if (text.compare(end, 2, "--") == 0 || letter == '#') {
      break;
    }
    if (letter == '"' || letter == '\'') {
      const std::size_t close = text.find(letter, end + 1);
      if (close == std::string::npos || text.find('\n', end) < close) {
        break;  // the end of a string that holds the arguments
      }
      end = close;
    } else if (letter == '$' && end + 1 < text.size() && text[end + 1] == '{') {
      end = std::min(text.find('}', end), text.size() - 1);
    }
    ++end;
  }
  while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\t')) { --end; }
  return {.begin = begin, .end = end};
}

std::string values_text(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) { text += (text.empty() ? "" : " ") + shell_word(value); }
  return text;
}

// "TP" of "$TP", "${TP}" and "${TP:-2}", in quotes or not; "" of other words.
std::string variable_of(std::string word) {
  std::erase(word, '"');
  if (!word.starts_with('$')) {
    return "";
  }
  word.erase(0, word.starts_with("${") ? 2 : 1);
  const std::size_t end =
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  const std::string rest = end == std::string::npos ? "" : word.substr(end);
  return rest.empty() || rest.starts_with('}') || rest.starts_with(":-") ? word.substr(0, end) : "";
}

// Sets the variable where the script sets it, once and to a plain number or word; false where not.
bool set_variable(std::string& text, const std::string& name, const std::string& value) {
  const std::string opening = name + "=";
  std::size_t found = std::string::npos;
  for (std::size_t at = text.find(opening); at != std::string::npos;
       at = text.find(opening, at + 1)) {
    const char before = at == 0 ? '\n' : text[at - 1];
    const bool is_in_comment = text.find('#', text.rfind('\n', at) + 1) < at;
    if (is_in_comment || (before != '\n' && before != ' ' && before != '\t' && before != ';')) {
      continue;
    }
    if (found != std::string::npos) {
      return false;
    }
    found = at;
  }
  if (found == std::string::npos) {
    return false;
  }
  const std::size_t begin = found + opening.size();
  const std::size_t end = std::min(text.find_first_of(" \t\n;#", begin), text.size());
  const std::string word = text.substr(begin, end - begin);
  const std::size_t fallback = word.find(":-");  // TP=${TP:-2}
  if (fallback != std::string::npos && word.ends_with('}')) {
    text.replace(begin + fallback + 2, word.size() - fallback - 3, value);
    return true;
  }
  if (word.find_first_of("$`(") != std::string::npos) {
    return false;
  }
  text.replace(begin, word.size(), value);
  return true;
}

void replace_values(std::string& text, std::size_t at, const ArgumentChange& change) {
  const Span values = values_behind(text, at + change.name.size());
  const std::string old = text.substr(values.begin, values.end - values.begin);
  const std::string fresh = values_text(change.values);
  const std::string variable = variable_of(old);
  if (!variable.empty() && set_variable(text, variable, fresh)) {
    return;
  }
  text.replace(values.begin, values.end - values.begin, fresh);
}

// The argument with its values, and the blanks behind them; of a line that holds nothing else all
// of it.
void remove_argument(std::string& text, std::string_view name) {
  for (std::size_t at = find_word(text, name, 0); at != std::string::npos;
       at = find_word(text, name, at)) {
    std::size_t end = values_behind(text, at + name.size()).end;
    end = std::max(end, at + name.size());
    const std::size_t line = text.rfind('\n', at) + 1;
    std::size_t behind = std::min(text.find_first_not_of(" \t", end), text.size());
    if (text.compare(behind, 2, "\\\n") == 0) {
      ++behind;
    }
    const bool is_alone = text.find_first_not_of(" \t", line) == at &&
                          (behind == text.size() || text[behind] == '\n');
    if (is_alone) {
      text.erase(line, behind + 1 - line);
      at = line;
    } else {
      text.erase(at, std::min(text.find_first_not_of(" \t", end), text.size()) - at);
    }
  }
}

// Behind the first argument that stands in the script.
void add_argument(std::string& text, const ArgumentChange& change) {
  constexpr auto kAnchors = std::to_array<std::string_view>(
      {"--micro-batch-size", "--tensor-model-parallel-size", "--num-layers", "--seq-length"});
  for (const std::string_view anchor : kAnchors) {
    const std::size_t at = find_word(text, anchor, 0);
    if (at == std::string::npos) {
      continue;
    }
    const Span values = values_behind(text, at + anchor.size());
    std::string added = " " + change.name;
    added += change.values.empty() ? "" : " " + values_text(change.values);
    text.insert(values.end, added);
    return;
  }
}

}  // namespace

std::vector<ArgumentChange> changes_between(const std::vector<ExportedArgument>& before,
                                            const std::vector<ExportedArgument>& after) {
  std::vector<ArgumentChange> changes;
  for (const ExportedArgument& argument : before) {
    if (std::ranges::find(after, argument.name, &ExportedArgument::name) == after.end()) {
      changes.push_back({.name = argument.name, .is_removed = true});
    }
  }
  for (const ExportedArgument& argument : after) {
    const auto old = std::ranges::find(before, argument.name, &ExportedArgument::name);
    if (old == before.end() || old->values != argument.values) {
      changes.push_back({.name = argument.name, .values = argument.values});
    }
  }
  return changes;
}

std::string edited_script(std::string text, const std::vector<ArgumentChange>& changes) {
  for (const ArgumentChange& change : changes) {
    for (const Rivals& rivals : kRivals) {
      if (rivals.name == change.name) {
        remove_argument(text, rivals.other);
      }
    }
    if (change.is_removed) {
      remove_argument(text, change.name);
      continue;
    }
    std::size_t at = find_word(text, change.name, 0);
    if (at == std::string::npos) {
      add_argument(text, change);
      continue;
    }
    for (; at != std::string::npos; at = find_word(text, change.name, at + 1)) {
      if (!change.values.empty()) {
        replace_values(text, at, change);
      }
    }
  }
  return text;
}

}  // namespace shardplan
