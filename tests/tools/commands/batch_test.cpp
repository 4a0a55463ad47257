// `shardplan batch` as a user meets it: every line is answered, in order.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

constexpr const char* kGoodLine =
    R"({"schema": 1, "id": "good", "framework": "megatron", "model": "llama3-8b",)"
    R"( "cluster": "1x8-h200", "training": {"sequence_length": 8192, "micro_batch": 1,)"
    R"( "num_microbatches": 4, "precision": "bf16"},)"
    R"( "plan": {"tp": 2, "pp": 2, "dp": 2}})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t start = text.find(from);
  REQUIRE(start != std::string::npos);
  return text.replace(start, from.size(), to);
}

}  // namespace

TEST_CASE("a batch answers every line in order and goes on after bad ones") {
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  const std::string results = directory.path() + "/results.jsonl";
  const std::string good = kGoodLine;
  write_file(
      cases,
      good + "\n" +                                                                       // 1
          replaced(replaced(good, "\"good\"", "\"typo\""), "\"tp\"", "\"tpp\"") + "\n" +  // 2
          "not json\n\n" +  // 3, 4 blank
          replaced(replaced(good, "\"good\"", "\"other\""), "\"megatron\"",
                   "\"no-such-framework\"") +
          "\n" +                                                                                // 5
          replaced(replaced(good, "\"good\"", "\"odd\""), "\"tp\": 2", "\"tp\": 3") + "\r\n" +  // 6
          replaced(replaced(good, "\"good\"", "\"big\""), "llama3-8b", "llama3-405b"));         // 7
  const ProgramRun run = run_shardplan({"batch", cases, "--format", "json", "--out", results});
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK(num_lines(run.err) == 1);
  CHECK(contains(run.err, "2 of 6 lines"));
  const std::vector<JsonValue> lines = json_lines(read_file(results));
  REQUIRE(lines.size() == 6);
  const std::vector<std::string> ids = {"good", "typo", "", "other", "odd", "big"};
  const Words statuses = {"fits", "error", "error", "unsupported", "invalid", "does_not_fit"};
  const std::vector<std::int64_t> numbers = {1, 2, 3, 5, 6, 7};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    INFO(i);
    CHECK(at(lines[i], "id").string == ids[i]);
    CHECK(at(lines[i], "line").integer == numbers[i]);
    CHECK(at(at(lines[i], "predicted"), "status").string == statuses[i]);
  }
  CHECK(contains(at(at(lines[1], "predicted"), "reason").string, "cases.jsonl:2: /plan/tpp"));
}

TEST_CASE("a batch says nothing before it can read its file") {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  const std::string files = " < " + path + " > " + path + "/out 2> " + path + "/err; ";
  CHECK(shell("shardplan batch -" + files + "test $? -eq 2") == 0);
  CHECK(read_file(path + "/out").empty());
  CHECK(read_file(path + "/err") ==
        "shardplan: error: standard input: cannot be read: Is a directory\n");
}

TEST_CASE("a batch whose lines all have answers exits with 0, read from a pipe as well") {
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  const std::string piped = directory.path() + "/piped.jsonl";
  write_file(cases, std::string(kGoodLine) + "\n");
  const ProgramRun run = run_shardplan({"batch", cases, "--format", "json"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(shell("shardplan batch - --format json < " + cases + " > " + piped) == 0);
  CHECK(read_file(piped) == run.out);
}

TEST_CASE("a batch says what it ignored in a line") {
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  std::string line = kGoodLine;
  const std::string preset = R"("llama3-8b")";
  line.replace(line.find(preset), preset.size(),
               R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,)"
               R"( "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1024,)"
               R"( "num_key_value_head": 2})");
  write_file(cases, line + "\n");
  const ProgramRun run = run_shardplan({"batch", cases, "--format", "json"});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.err, "cases.jsonl:1: /model/num_key_value_head: found an unknown key"));
}

TEST_CASE("a batch and an estimate of the same case agree in every figure") {
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  write_file(cases, kGoodLine);
  const ProgramRun batch = run_shardplan({"batch", cases, "--format", "json"});
  const ProgramRun estimate = run_shardplan(
      {"estimate", "--model", "llama3-8b", "--cluster", "1x8-h200", "--sequence-length", "8192",
       "--num-microbatches", "4", "--tp", "2", "--pp", "2", "--dp", "2", "--format", "json"});
  const std::string key = "\"predicted\":";
  const std::string predicted = batch.out.substr(batch.out.find(key));
  REQUIRE(predicted.size() > 100);
  CHECK(contains(estimate.out, predicted.substr(0, predicted.size() - 2)));
}

TEST_CASE("the plan of an answer is the plan of a case line") {
  const ProgramRun estimate = run_shardplan(estimate_words(
      {"--tp", "2", "--pp", "2", "--cp", "2", "--recompute", "full", "--format", "json"}));
  const std::string key = "\"plan\":";
  const std::size_t start = estimate.out.find(key) + key.size();
  const std::string plan = estimate.out.substr(start, estimate.out.find(",\"given\"") - start);
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  const std::string line = replaced(kGoodLine, "\"num_microbatches\": 4", "\"global_batch\": 64");
  write_file(cases, replaced(line, R"({"tp": 2, "pp": 2, "dp": 2})", plan));
  const ProgramRun batch = run_shardplan({"batch", cases, "--format", "json"});
  INFO(batch.err);
  CHECK(batch.exit_code == 0);
  const std::string predicted = batch.out.substr(batch.out.find("\"predicted\":"));
  CHECK(contains(estimate.out, predicted.substr(0, predicted.size() - 2)));
}

TEST_CASE("between what a plan requires and what it uses it is tight, below it does not fit") {
  const auto run_at = [](const std::string& memory) {
    return run_shardplan(
        estimate_words({"--tp", "2", "--pp", "2", "--format", "json", "--gpu-memory", memory}));
  };
  const ProgramRun roomy = run_at("141GB");
  const JsonValue roomy_answer = json_of(roomy);
  std::int64_t required = 0;
  std::int64_t used = 0;
  for (const JsonValue& stage : at(at(roomy_answer, "predicted"), "stages").items) {
    const std::int64_t outside = at(stage, "outside").integer;
    required = std::max(required, at(stage, "required").integer + outside);
    used = std::max(used, at(stage, "device_used").integer);
  }
  REQUIRE(required < used);
  const auto check = [&](std::int64_t bytes, const std::string& status, int exit_code) {
    const ProgramRun run = run_at(std::to_string(bytes));
    const JsonValue answer = json_of(run);
    CHECK(run.exit_code == exit_code);
    CHECK(at(at(answer, "predicted"), "status").string == status);
    const std::string reason = at(at(answer, "predicted"), "reason").string;
    CHECK(contains(reason, "gives cached memory back") == (status == "tight"));
    CHECK(reason.empty() == (status == "fits"));
  };
  check(used, "fits", 0);
  check(used - 1, "tight", 0);
  check(required, "tight", 0);
  check(required - 1, "does_not_fit", 1);
}

TEST_CASE("every measured run of the project's data is read") {
  const std::string cases =
      std::string(SHARDPLAN_SOURCE_DIR) + "/data/measured/h200_frameworks.jsonl";
  const ProgramRun run = run_shardplan({"batch", cases, "--format", "json"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  const std::vector<JsonValue> lines = json_lines(run.out);
  CHECK(lines.size() == 80);
  CHECK(std::none_of(lines.begin(), lines.end(), [](const JsonValue& line) {
    return at(at(line, "predicted"), "status").string == "error";
  }));
}

TEST_CASE("the CSV of a batch has one row per stage and one per line without an answer") {
  const TemporaryDirectory directory;
  const std::string cases = directory.path() + "/cases.jsonl";
  write_file(cases, std::string(kGoodLine) + "\n{}\n");
  const ProgramRun run = run_shardplan({"batch", cases, "--format", "csv"});
  CHECK(run.exit_code == 2);
  CHECK(num_lines(run.out) == 1 + 2 + 1);
  CHECK(run.out.starts_with("line,id,framework,status,reason,stage,"));
}

}  // namespace shardplan
