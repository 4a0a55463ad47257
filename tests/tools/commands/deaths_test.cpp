// Runs that really ran out of memory: does the first row name the tensor that was asked for?
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "data/read/json_reader.h"
#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

std::string replaced(std::string text, const std::string& words, const std::string& by) {
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words)) {
    text.replace(at, words.size(), by);
  }
  return text;
}

// One line of deaths.jsonl: options of the run, lines of its log, and the rows, without the shape
// of a weight behind them, that the traceback names.
bool is_named(const JsonValue& death, const std::string& folder) {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  std::string text;
  for (const JsonValue& line : at(death, "log").items) { text += line.string + "\n"; }
  write_file(log, text);
  std::vector<std::string> words = {"why-oom", log};
  for (const JsonValue& word : at(death, "words").items) {
    words.push_back(replaced(word.string, "{DEATHS}", folder));
  }
  words.insert(words.end(), {"--format", "json"});
  const JsonValue answer = json_of(run_in_full(words));
  REQUIRE(!at(answer, "failures").items.empty());
  const std::vector<JsonValue>& matches = at(at(answer, "failures").items.front(), "matches").items;
  REQUIRE(!matches.empty());
  const std::string row = at(matches.front(), "row").string;
  return std::ranges::any_of(at(death, "rows").items, [&](const JsonValue& named) {
    return row.substr(0, row.find(',')) == named.string;
  });
}

}  // namespace

// 44 runs of launch files that --export wrote for Megatron-LM, torchtitan, transformers' Trainer
// and DeepSpeed, each under a limit below what it needs
// (torch.cuda.set_per_process_memory_fraction), on one H200. The row is read in the traceback.
// Two tensors, in a rotary embedding and in a norm, are shorter-lived than any row.
TEST_CASE("why-oom names the tensor first that was asked for, nine times in ten") {
  const std::string folder = std::string(SHARDPLAN_SOURCE_DIR) + "/tests/data/fixtures/deaths";
  std::istringstream lines(read_file(folder + "/deaths.jsonl"));
  std::int64_t deaths = 0;
  std::int64_t named = 0;
  for (std::string line; std::getline(lines, line);) {
    const JsonValue death = parse_json(line, "deaths.jsonl");
    const bool is_first = is_named(death, folder);
    if (!is_first) {
      MESSAGE(at(death, "id").string << ": another row comes first");
    }
    ++deaths;
    named += is_first ? 1 : 0;
  }
  CHECK(deaths == 44);
  CHECK(10 * named >= 9 * deaths);
}

}  // namespace shardplan
