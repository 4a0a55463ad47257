#include "tools/options/missing_options.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tools/options/command_words.h"

namespace shardplan {
namespace {

// What a job needs, and a value that gives an answer.
struct NeededOption {
  std::string_view name;
  std::string_view instead;  // another option that says it; may be ""
  std::string_view example;
  bool is_of_file;  // a run's file says it, too
};
constexpr std::array kNeeded = std::to_array<NeededOption>({
    {.name = "model", .instead = "", .example = "llama3-8b", .is_of_file = true},
    {.name = "cluster", .instead = "gpu", .example = "1x8-h100", .is_of_file = false},
    {.name = "sequence-length", .instead = "", .example = "8k", .is_of_file = true},
    {.name = "global-batch", .instead = "num-microbatches", .example = "64", .is_of_file = true},
    {.name = "against", .instead = "", .example = "tp=2", .is_of_file = false},
});

bool is_missing(const Options& options, const NeededOption& needed, std::string_view name) {
  const std::vector<const OptionRow*> rows = options_of(options.command);
  const bool is_known = std::ranges::find(rows, needed.name, &OptionRow::name) != rows.end();
  const bool is_said = given(options, needed.name) || given(options, needed.instead) ||
                       (needed.is_of_file && given(options, "from"));
  return is_known && (!is_said || needed.name == name);
}

std::string listed(const std::vector<std::string>& words) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    list += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return list + (words.size() == 1 ? " is" : " are");
}

}  // namespace

InputError missing_options(const Options& options, std::string_view name) {
  std::vector<std::string> missing;
  Options whole = options;
  for (const NeededOption& needed : kNeeded) {
    if (is_missing(options, needed, name)) {
      missing.push_back("--" + std::string(needed.name));
      whole.values[std::string(needed.name)] = {std::string(needed.example)};
    }
  }
  if (missing.empty()) {
    missing.push_back("--" + std::string(name));
  }
  std::string command = options.command;
  for (const std::string& word : options.positional) { command += " " + shell_word(word); }
  return InputError(options.command + ": " + listed(missing) + " missing; see 'shardplan help " +
                        options.command + "'",
                    command_text(whole, options.command)
                        .replace(0, std::string("shardplan ").size() + options.command.size(),
                                 "shardplan " + command));
}

}  // namespace shardplan
