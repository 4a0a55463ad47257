#include "tools/options/options.h"
#include "estimator/plan/units.h"
#include "tests/tools/commands/answer.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/options/option_table.h"
#include "tools/options/option_values.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>

namespace shardplan {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& problem) { return problem.what(); }
  return "";
}

std::string refusal(const std::vector<std::string>& arguments) {
  return message_of([&arguments] { parse_options("estimate", arguments); });
}

}  // namespace

TEST_CASE("a value may follow its option or an equals sign") {
  CHECK(count_or(parse_options("estimate", {"--tp", "8"}), "tp", 1) == 8);
  CHECK(count_or(parse_options("estimate", {"--tp=8"}), "tp", 1) == 8);
  CHECK(count_or(parse_options("estimate", {}), "tp", 3) == 3);
}

TEST_CASE("counts accept suffixes: 4k tokens are 4096") {
  CHECK(parse_count("4096", 1, 1 << 20, "x") == 4096);
  CHECK(parse_count("4k", 1, 1 << 20, "x") == 4096);
  CHECK(parse_count("4Ki", 1, 1 << 20, "x") == 4096);
  CHECK(parse_count("1M", 1, 1 << 20, "x") == 1048576);
}

TEST_CASE("memory needs no guess: GiB is binary, GB is decimal") {
  constexpr std::int64_t kMost = kGiB * 1024;
  CHECK(parse_bytes("80GiB", 1, kMost, "x") == 85899345920);
  CHECK(parse_bytes("80GB", 1, kMost, "x") == 80000000000);
  CHECK(parse_bytes("0.5GiB", 1, kMost, "x") == 536870912);
  CHECK(parse_bytes("85899345920", 1, kMost, "x") == 85899345920);
  CHECK(contains(message_of([] { parse_bytes("80G", 1, kMost, "--gpu-memory"); }),
                 "--gpu-memory: found '80G'"));
}

TEST_CASE("numbers that are not whole, not positive or too large are refused with the range") {
  for (const char* word : {"-1", "0", "1.5", "", "x", "8x", "0x10", "+8", " 8", "8 ", "1e3", "true",
                           "99999999999999999999", "9223372036854775807k", "1025"}) {
    INFO(word);
    const std::string message = refusal({"--tp", word});
    CHECK(contains(message, "--tp: found '" + std::string(word) + "'"));
    CHECK(contains(message, "an integer from 1 to 1024"));
  }
}

TEST_CASE("shares outside 0 to 1, nan and inf are refused") {
  for (const char* word : {"1.01", "-0.1", "nan", "inf", "80%", "", "0x1"}) {
    INFO(word);
    CHECK(contains(refusal({"--memory-threshold", word}), "a number from 0 to 1"));
  }
  CHECK(number_or(parse_options("search", {"--memory-threshold", "0.80"}), "memory-threshold", 0) ==
        0.80);
}

TEST_CASE("an option given twice is refused unless it is repeatable") {
  CHECK(refusal({"--tp", "2", "--tp", "2"}) == "--tp: given more than once");
  CHECK(refusal({"--explain", "--explain"}) == "--explain: given more than once");
  const Options options = parse_options("search", {"--fix", "tp=8", "--fix", "pp=2"});
  CHECK(all_of(options, "fix") == std::vector<std::string>{"tp=8", "pp=2"});
}

TEST_CASE("names are never completed from a prefix") {
  CHECK(contains(refusal({"--seq", "4"}), "unknown option '--seq'"));
  CHECK(contains(refusal({"--seq-length", "4"}), "did you mean \"--sequence-length\"?"));
  CHECK(contains(refusal({"--tensor_model_parallel_size=4"}), "did you mean \"--tp\"?"));
  CHECK(contains(refusal({"--global_batch", "4"}), "did you mean \"--global-batch\"?"));
  CHECK(contains(refusal({"--sequence-lengt", "4"}), "did you mean \"--sequence-length\"?"));
  CHECK(contains(refusal({"--sequence-lengt=4"}), "did you mean \"--sequence-length\"?"));
}

TEST_CASE("an option of another command is named as such") {
  CHECK(contains(refusal({"--fix", "tp=8"}), "it belongs to search"));
  const auto of_search = [](const char* flag) {
    return message_of([&] { parse_options("search", {flag, "8"}); });
  };
  CHECK(contains(of_search("--layers-per-chunk"), "it belongs to estimate compare advise why-oom"));
  CHECK(contains(of_search("--micro-batch-size"), "did you mean \"--micro-batch\"?"));
}

TEST_CASE("missing and superfluous values are refused") {
  CHECK(refusal({"--tp"}) == "--tp: needs a value");
  CHECK(refusal({"--tp="}) == "--tp: needs a value");
  CHECK(refusal({"--tp", "--pp", "2"}) == "--tp: needs a value");
  CHECK(refusal({"--explain=yes"}) == "--explain: takes no value");
}

TEST_CASE("words that look like short options are refused, a lone dash is a file") {
  CHECK(contains(refusal({"-t", "8"}), "unknown option '-t'"));
  CHECK(parse_options("batch", {"-"}).positional == std::vector<std::string>{"-"});
}

TEST_CASE("choices accept a dash for an underscore and suggest what was meant") {
  CHECK(text_or(parse_options("estimate", {"--cp-method", "all-gather"}), "cp-method", "") ==
        "all_gather");
  const std::string message = refusal({"--schedule", "1f1c"});
  CHECK(contains(message, "gpipe | 1f1b"));
  CHECK(contains(message, "did you mean \"1f1b\"?"));
}

TEST_CASE("lists have no empty pieces") {
  CHECK(parse_list("a,b", "x") == std::vector<std::string>{"a", "b"});
  for (const char* word : {"", ",", "a,", ",a", "a,,b"}) {
    INFO(word);
    CHECK_THROWS_AS(parse_list(word, "x"), InputError);
  }
}

TEST_CASE("every option has one row per command, a help line and a valid range") {
  std::set<std::string> names;
  for (const OptionRow& row : option_table()) {
    INFO(row.name);
    for (const std::string& command : row.commands) {
      CHECK(names.insert(command + " " + row.name).second);
    }
    CHECK(!row.help.empty());
    CHECK(row.argument.empty() == (row.kind == OptionKind::kSwitch));
    CHECK(row.low <= row.high);
    CHECK(row.choices.empty() == (row.kind != OptionKind::kChoice));
  }
}

TEST_CASE("help shows every option of a command and nothing else's") {
  for (const Command& command : commands()) {
    const std::string help = help_text(command);
    const std::vector<const OptionRow*> own = options_of(command.name);
    for (const OptionRow& row : option_table()) {
      const bool is_own = std::any_of(
          own.begin(), own.end(), [&row](const OptionRow* each) { return each->name == row.name; });
      INFO(command.name << " " << row.name);
      CHECK((contains(help, "  --" + row.name + " ") || contains(help, "  --" + row.name + "\n")) ==
            is_own);
    }
  }
}

TEST_CASE("an unknown command suggests the nearest") {
  CHECK(contains(message_of([] { command_named("serach"); }), "did you mean \"search\"?"));
  CHECK(command_named("search").name == "search");
}

}  // namespace shardplan
