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
  } catch (const InputError& problem) { return problem.what() + ("\nhint: " + problem.hint); }
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
  CHECK(parse_bytes("80 GB", 1, kMost, "x") == 80000000000);
  CHECK(parse_bytes("80gib", 1, kMost, "x") == 85899345920);
  CHECK(contains(message_of([] { parse_bytes("80G", 1, kMost, "--gpu-memory"); }),
                 "--gpu-memory: found '80G'"));
}

TEST_CASE("tokens and money count in thousands") {
  CHECK(parse_number("2T", 0, 1e18, "x") == 2e12);
  CHECK(parse_number("1.5b", 0, 1e18, "x") == 1.5e9);
  CHECK(parse_number("300B", 0, 1e18, "x") == parse_number("300G", 0, 1e18, "x"));
  CHECK(parse_number("3k", 0, 1e18, "x") == 3000);
  CHECK(parse_number("2_000_000", 0, 1e18, "x") == 2e6);
  for (const char* word : {"T", "2TT", "2 T", "_2", "2_"}) {
    CHECK_THROWS_AS(parse_number(word, 0, 1e18, "x"), InputError);
  }
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
  CHECK(contains(refusal({"--tp", "2", "--tp", "2"}), "--tp: given more than once"));
  CHECK(contains(refusal({"--explain", "--explain"}), "--explain: given more than once"));
  const Options options = parse_options("search", {"--fix", "tp=8", "--fix", "pp=2"});
  CHECK(all_of(options, "fix") == std::vector<std::string>{"tp=8", "pp=2"});
}

TEST_CASE("names are never completed from a prefix") {
  CHECK(contains(refusal({"--seq", "4"}), "unknown option '--seq'"));
  CHECK(contains(refusal({"--seq-length", "4"}), "hint: here --sequence-length 4"));
  CHECK(contains(refusal({"--tensor_model_parallel_size=4"}), "hint: here --tp 4"));
  CHECK(contains(refusal({"--global_batch", "4"}), "did you mean \"--global-batch\"?"));
  CHECK(contains(refusal({"--sequence-lengt", "4"}), "did you mean \"--sequence-length\"?"));
  CHECK(contains(refusal({"--sequence-lengt=4"}), "did you mean \"--sequence-length\"?"));
}

TEST_CASE("options of frameworks are answered with what stands for them here") {
  CHECK(contains(refusal({"--use-distributed-optimizer"}), "hint: here --zero 1"));
  CHECK(contains(refusal({"--recompute-activations"}), "hint: here --recompute selective"));
  CHECK(contains(refusal({"--per_device_train_batch_size", "4"}), "hint: here --micro-batch 4"));
  CHECK(contains(refusal({"--gradient-accumulation-steps=4"}), "hint: here --num-microbatches 4"));
  CHECK(contains(refusal({"--parallelism.tensor_parallel_degree", "4"}), "hint: here --tp 4"));
  const std::string three = refusal({"--tensor-model-parallel-size", "4", "--tp", "2",
                                     "--use-distributed-optimizer", "--micro-batch-size", "2"});
  CHECK(contains(three,
                 "'--tensor-model-parallel-size', '--use-distributed-optimizer', "
                 "'--micro-batch-size' of estimate, which are Megatron-LM's"));
  CHECK(contains(three, "--tp 4"));
  CHECK(contains(three, "--zero 1"));
  CHECK(contains(three, "--micro-batch 2"));
}

TEST_CASE("an option that takes KEY=VALUE takes a list of them, and no other list is split") {
  const auto values = [](const std::string& option, const std::string& word) {
    return all_of(parse_options("search", {"--" + option, word}), option);
  };
  CHECK(values("framework-option", "a=true,b=true") ==
        std::vector<std::string>{"a=true", "b=true"});
  CHECK(values("set", "tp=2,pp=4") == std::vector<std::string>{"tp=2", "pp=4"});
  CHECK(values("fix", "rank_order=pp,dp,cp,tp").size() == 1);
  CHECK(values("range", "tp=1,2,4").size() == 1);
}

TEST_CASE("a word in front of the options is the model, or the run's file") {
  CHECK(text_or(parse_options("estimate", {"llama3-8b"}), "model", "") == "llama3-8b");
  CHECK(text_or(parse_options("estimate", {"run.toml"}), "from", "") == "run.toml");
  CHECK(text_or(parse_options("search", {"train.sh:57"}), "from", "") == "train.sh:57");
  CHECK(parse_options("why-oom", {"run.log"}).positional.size() == 1);
  CHECK(parse_options("estimate", {"tp=2"}).positional.size() == 1);
}

TEST_CASE("an answer does not land in a file whose name says another format") {
  for (const char* const name : {"a.html", "a.pdf", "a.json", "a.csv"}) {
    CHECK(contains(refusal({"--out", name}), "--out: found '"));
  }
  CHECK(refusal({"--out", "a.json", "--format", "json"}).empty());
  CHECK(refusal({"--out", "a.txt"}).empty());
  CHECK(refusal({"--out", "answer"}).empty());
}

TEST_CASE("an option of another command is named as such") {
  CHECK(contains(refusal({"--fix", "tp=8"}), "it belongs to search"));
  const auto of_search = [](const char* flag) {
    return message_of([&] { parse_options("search", {flag, "8"}); });
  };
  CHECK(contains(of_search("--layers-per-chunk"), "it belongs to estimate, compare, advise"));
  CHECK(contains(of_search("--micro-batch-size"), "hint: here --micro-batch 8"));
}

TEST_CASE("missing and superfluous values are refused") {
  CHECK(contains(refusal({"--tp"}), "--tp: needs a value"));
  CHECK(contains(refusal({"--tp="}), "--tp: needs a value"));
  CHECK(contains(refusal({"--tp", "--pp", "2"}), "--tp: needs a value"));
  CHECK(contains(refusal({"--explain=yes"}), "--explain: takes no value"));
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
