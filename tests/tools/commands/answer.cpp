#include "tests/tools/commands/answer.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tools/from/shell/read_shell.h"

namespace shardplan {

Words estimate_words(const Words& more) {
  Words words = {"estimate", "--model",        "llama3-8b", "--cluster",
                 "1x8-h200", "--framework",    "megatron",  "--sequence-length",
                 "8192",     "--global-batch", "64"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words& without_overlaps() {
  static const Words words = {"--framework-option", "overlap_grad_reduce=false",
                              "--framework-option", "overlap_param_gather=false",
                              "--framework-option", "tp_overlap=exposed"};
  return words;
}

Words with_options(Words words, const std::string& options) {
  const Words own = read_shell(options, "options").commands[0].words;
  for (std::size_t at = 0; at + 1 < own.size(); at += 2) {
    const auto found = std::ranges::find(words, own[at]);
    if (found == words.end() || own[at] == "--framework-option") {
      words.insert(words.end(), {own[at], own[at + 1]});
    } else {
      *std::next(found) = own[at + 1];
    }
  }
  return words;
}

int shell(const std::string& line) {
  const std::string command = "PATH='" SHARDPLAN_BINARY_DIR "':\"$PATH\"; " + line;
  const int status = std::system(command.c_str());
  return WEXITSTATUS(status);
}

JsonValue json_of(const ProgramRun& run) {
  return parse_json(run.out, "stdout");
}

std::vector<JsonValue> json_lines(const std::string& text) {
  std::vector<JsonValue> lines;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    lines.push_back(parse_json(text.substr(start, end - start), "line"));
    start = end + 1;
  }
  return lines;
}

const JsonValue* find(const JsonValue& value, std::string_view key) {
  for (const auto& [name, member] : value.members) {
    if (name == key) {
      return &member;
    }
  }
  return nullptr;
}

const JsonValue& at(const JsonValue& value, std::string_view key) {
  const JsonValue* found = find(value, key);
  REQUIRE_MESSAGE(found != nullptr, "no member ", key);
  return *found;
}

std::int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_refused(const ProgramRun& run, int exit_code) {
  CHECK(run.exit_code == exit_code);
  CHECK(run.out.empty());
  const std::size_t end = run.err.find('\n');
  const std::string behind = end == std::string::npos ? "" : run.err.substr(end + 1);
  CHECK(run.err.starts_with("shardplan: error: "));
  CHECK((behind.empty() || (behind.starts_with("hint: ") && num_lines(behind) == 1)));
}

}  // namespace shardplan
