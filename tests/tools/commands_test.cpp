// The built program as a user meets it: answers, exit codes, one line of complaint.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "data/json_reader.h"
#include "data/library.h"
#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// Llama-3-8B on one node of 8 H200.
Words estimate_words(const Words& more) {
  Words words = {"estimate", "--model",        "llama3-8b", "--cluster",
                 "1x8-h200", "--framework",    "megatron",  "--sequence-length",
                 "8192",     "--global-batch", "64"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const JsonValue& at(const JsonValue& value, std::string_view key) {
  for (const auto& [name, member] : value.members) {
    if (name == key) {
      return member;
    }
  }
  FAIL("no member " << key);
  return value;
}

JsonValue json_of(const ProgramRun& run) {
  return parse_json(run.out, "stdout");
}

std::int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

void check_refused(const ProgramRun& run, int exit_code) {
  CHECK(run.exit_code == exit_code);
  CHECK(run.out.empty());
  CHECK(num_lines(run.err) == 1);
  CHECK(run.err.starts_with("shardplan: "));
}

// A shell line in which shardplan is the program; its exit code.
int shell(const std::string& line) {
  const std::string command = "PATH='" SHARDPLAN_BINARY_DIR "':\"$PATH\"; " + line;
  const int status = std::system(command.c_str());
  return WEXITSTATUS(status);
}

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

TEST_CASE("estimate answers with the verdict first, every component and what it rests on") {
  const ProgramRun run =
      run_shardplan(estimate_words({"--micro-batch", "1", "--tp", "2", "--pp", "2", "--dp", "2"}));
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.starts_with("FITS"));
  for (const char* part :
       {"8,030,261,248 parameters", "params", "grads", "optim", "activ", "temps", "comm",
        "workspace", "context", "allocated", "reserved", "required", "device used", "peak at",
        "measured: the GPU's efficiencies", "Assumptions", "zero 1*", "tokens/s per GPU"}) {
    INFO(part);
    CHECK(contains(run.out, part));
  }
  CHECK(!contains(run.out, "\x1b["));
}

TEST_CASE("a plan under each ZeRO stage of DeepSpeed is answered and said to be unmeasured") {
  for (const std::string zero : {"1", "2", "3"}) {
    const ProgramRun run = run_shardplan({"estimate", "--model", "llama3-8b", "--cluster",
                                          "1x8-h200", "--framework", "deepspeed", "--zero", zero,
                                          "--sequence-length", "8192", "--global-batch", "16"});
    INFO(run.err);
    CHECK(run.exit_code == 0);
    CHECK(contains(run.out, "unmeasured"));
  }
}

TEST_CASE("--set reaches every option of every profile") {
  const Library library;
  for (const std::string& framework : library.framework_names()) {
    Words words = {"estimate", "--model",        "llama3-8b", "--cluster",
                   "1x8-h200", "--tp",           "8",         "--framework",
                   framework,  "--format",       "json",      "--sequence-length",
                   "8192",     "--global-batch", "16"};
    for (const ProfileOption& option : profile_options(library, framework)) {
      std::string value = "1";
      if (option.type == "bool") {
        value = "true";
      } else if (!option.choices.empty()) {
        value = option.choices.back();
      }
      words.insert(words.end(), {"--set", option.name + "=" + value});
    }
    const ProgramRun run = run_shardplan(words);
    CAPTURE(framework);
    INFO(run.err);
    CHECK(run.exit_code <= 1);  // an answer, if only that this plan is invalid
  }
}

TEST_CASE("components of every stage sum to allocated plus outside, rows likewise") {
  const ProgramRun run =
      run_shardplan(estimate_words({"--tp", "2", "--pp", "4", "--explain", "--format", "json"}));
  CHECK(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const std::vector<JsonValue>& stages = at(at(answer, "predicted"), "stages").items;
  CHECK(stages.size() == 4);
  for (const JsonValue& stage : stages) {
    std::int64_t components = 0;
    for (const auto& [name, bytes] : at(stage, "components").members) {
      components += bytes.integer;
    }
    std::int64_t inside = 0;
    std::int64_t outside = 0;
    for (const JsonValue& row : at(stage, "rows").items) {
      CHECK(at(row, "bytes").integer * at(row, "copies").integer == at(row, "total_bytes").integer);
      (at(row, "in_allocator").boolean ? inside : outside) += at(row, "total_bytes").integer;
    }
    CHECK(components == at(stage, "peak_allocated").integer + at(stage, "outside").integer);
    CHECK(inside == at(stage, "peak_allocated").integer);
    CHECK(outside == at(stage, "outside").integer);
    CHECK(at(stage, "device_used").integer ==
          at(stage, "peak_reserved").integer + at(stage, "outside").integer);
    CHECK(at(stage, "peak_moment").string == at(at(stage, "moments").items.front(), "name").string);
  }
}

TEST_CASE("the parts of the step time sum to the step time") {
  const ProgramRun run =
      run_shardplan(estimate_words({"--tp", "2", "--pp", "2", "--format", "json"}));
  const JsonValue answer = json_of(run);
  const JsonValue& predicted = at(answer, "predicted");
  double sum_s = 0;
  for (const auto& [name, seconds] : at(predicted, "step_time_parts_s").members) {
    sum_s += seconds.real;
  }
  CHECK(sum_s == doctest::Approx(at(predicted, "step_time_s").real).epsilon(1e-12));
}

TEST_CASE("explained, every operation has its share of the step, and what it rests on") {
  const Words words = estimate_words({"--tp", "2", "--pp", "2", "--explain", "--format", "json"});
  const JsonValue answer = json_of(run_shardplan(words));
  const JsonValue& account = at(answer, "step_account");
  double share = 0;
  for (const JsonValue& row : at(account, "rows").items) {
    share += at(row, "share").real;
    CHECK(at(row, "count").integer > 0);
    CHECK_FALSE(at(row, "basis").string.empty());
  }
  CHECK(share == doctest::Approx(1).epsilon(1e-9));
  CHECK(at(account, "total_s").real == at(at(answer, "predicted"), "step_time_s").real);
  const std::string text = run_shardplan(estimate_words({"--tp", "2", "--explain"})).out;
  CHECK(text.find("\nTime of one step on the critical stage 0, ") != std::string::npos);
}

TEST_CASE("an invalid plan is a negative answer that names the rule and the numbers") {
  const ProgramRun run = run_shardplan(estimate_words({"--tp", "3"}));
  CHECK(run.exit_code == 1);
  CHECK(run.err.empty());
  CHECK(num_lines(run.out) == 1);
  CHECK(run.out.starts_with("INVALID PLAN"));
  const JsonValue answer =
      json_of(run_shardplan(estimate_words({"--tp", "3", "--format", "json"})));
  CHECK(at(at(answer, "predicted"), "status").string == "invalid");
}

TEST_CASE("microbatches whose bytes would leave 64 bits are refused, not wrapped around") {
  const ProgramRun run = run_shardplan({"estimate", "--model", "llama3-405b", "--cluster",
                                        "2048x8-h100", "--sequence-length", "128M",
                                        "--num-microbatches", "1", "--micro-batch", "1M"});
  CHECK(run.exit_code == 1);
  CHECK(run.out.starts_with("INVALID PLAN  microbatch_too_large"));
}

TEST_CASE("a plan that does not fit is a negative answer with all its numbers") {
  const ProgramRun run =
      run_shardplan(estimate_words({"--gpu-memory", "24GiB", "--format", "json"}));
  CHECK(run.exit_code == 1);
  const JsonValue answer = json_of(run);
  const JsonValue& predicted = at(answer, "predicted");
  CHECK(at(predicted, "status").string == "does_not_fit");
  CHECK(contains(at(predicted, "reason").string, "24.00 GiB"));
  CHECK(at(predicted, "stages").items.size() == 1);
}

TEST_CASE("a default that would turn the verdict is marked, a choice of the user is not listed") {
  const Words job = {
      "estimate", "--model",        "llama3-70b", "--cluster", "2x8-h100", "--sequence-length",
      "8192",     "--global-batch", "64",         "--tp",      "8",        "--pp",
      "2",        "--gpu-memory",   "90GiB"};
  const ProgramRun run = run_shardplan(job);
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "recompute: none (default; fits with full/uniform/1)  <- decides"));
  CHECK(contains(run.out, "cross_entropy: te_fused (default)\n"));
  Words chosen = job;
  chosen.insert(chosen.end(),
                {"--recompute", "full", "--framework-option", "cross_entropy=native_fused"});
  const ProgramRun fitting = run_shardplan(chosen);
  CHECK(fitting.exit_code == 0);
  CHECK(!contains(fitting.out, "- recompute:"));
  CHECK(!contains(fitting.out, "- cross_entropy:"));
}

TEST_CASE("a threshold that the user sets decides the verdict") {
  const Words plan = {"--tp", "2", "--pp", "2", "--memory-threshold", "0.01"};
  const ProgramRun run = run_shardplan(estimate_words(plan));
  CHECK(run.exit_code == 1);
  CHECK(run.out.starts_with("DOES NOT FIT"));
  CHECK(contains(run.out, "rule broken"));
}

TEST_CASE("the largest sequence keeps the memory rule and the next one does not") {
  const Words common = {"--tp", "2", "--pp", "2", "--recompute", "full", "--format", "json"};
  Words words = common;
  words.insert(words.end(), {"--find-max", "sequence_length", "--gpu-memory", "40GiB"});
  const ProgramRun run = run_shardplan(estimate_words(words));
  CHECK(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const std::int64_t most = at(at(answer, "find_max"), "value").integer;
  CHECK(at(answer, "sequence_length").integer == most);
  for (const auto& [length, exit_code] : {std::pair{most, 0}, std::pair{most + 2, 1}}) {
    Words again = {"estimate",
                   "--model",
                   "llama3-8b",
                   "--cluster",
                   "1x8-h200",
                   "--sequence-length",
                   std::to_string(length),
                   "--global-batch",
                   "64",
                   "--gpu-memory",
                   "40GiB",
                   "--memory-threshold",
                   "0.8"};
    again.insert(again.end(), common.begin(), common.end());
    CHECK(run_shardplan(again).exit_code == exit_code);
  }
}

TEST_CASE("the largest micro batch of a fixed global batch divides it") {
  Words words = {"--tp", "2", "--find-max", "micro_batch", "--format", "json"};
  const JsonValue answer = json_of(run_shardplan(estimate_words(words)));
  const std::int64_t most = at(at(answer, "find_max"), "value").integer;
  CHECK(at(at(answer, "find_max"), "fits").boolean);
  CHECK(at(answer, "global_batch").integer == 64);
  CHECK(64 / 4 % most == 0);  // dp 4
  CHECK(at(answer, "micro_batch").integer == most);
}

TEST_CASE("mistakes exit with 2 and one line that names the flag or the preset") {
  const std::vector<std::pair<Words, std::string>> mistakes = {
      {{}, "no command"},
      {{"estimat"}, "did you mean \"estimate\"?"},
      {{"estimate"}, "--sequence-length is missing"},
      {estimate_words({"--tp", "-1"}), "--tp: found '-1'"},
      {estimate_words({"--tpp", "2"}), "did you mean \"--tp\"?"},
      {estimate_words({"extra"}), "found 'extra'"},
      {estimate_words({"--num-microbatches", "4"}), "found both"},
      {estimate_words({"--num-gpus", "12"}), "a multiple of the 8 GPUs"},
      {estimate_words({"--framework-option", "swiglu"}), "expected KEY=VALUE"},
      {estimate_words({"--framework-option", "swiglo=fused"}), "swiglu"},
      {{"list", "modles"}, "did you mean \"models\"?"},
      {{"list", "options"}, "expected models"},
      {{"batch"}, "expected one file of case lines"},
      {{"batch", "/nowhere/cases.jsonl"}, "/nowhere/cases.jsonl: cannot be read"},
      {{"help", "serach"}, "did you mean \"search\"?"},
      {{"version", "x"}, "takes no arguments"},
  };
  for (const std::pair<Words, std::string>& mistake : mistakes) {
    const ProgramRun run = run_shardplan(mistake.first);
    INFO(mistake.second << " <- " << run.err);
    check_refused(run, 2);
    CHECK(contains(run.err, mistake.second));
  }
}

TEST_CASE("control characters of the command line do not reach the terminal") {
  check_refused(run_shardplan({"estimate", "--a\nb\x1b[31m"}), 2);
}

TEST_CASE("a file that cannot be written exits with 3 and nothing is left") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/answer.json";
  std::filesystem::create_directory(path);
  check_refused(run_shardplan({"list", "models", "--out", path}), 3);
  check_refused(run_shardplan({"list", "models", "--out", directory.path() + "/no/answer"}), 3);
  CHECK(std::filesystem::is_empty(path));
  CHECK(shell("shardplan list models > /dev/full 2> /dev/null") == 3);
}

TEST_CASE("--out holds what standard output would have shown") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/answer.csv";
  const Words words = {"list", "models", "--format", "csv"};
  const ProgramRun shown = run_shardplan(words);
  const ProgramRun written = run_shardplan({"list", "models", "--format", "csv", "--out", path});
  CHECK(written.exit_code == 0);
  CHECK(written.out.empty());
  CHECK(read_file(path) == shown.out);
}

TEST_CASE("an input mistake leaves no file") {
  const TemporaryDirectory directory;
  check_refused(run_shardplan(estimate_words({"--model=nope", "--out", directory.path() + "/a"})),
                2);
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("a closed pipe is not an error") {
  const TemporaryDirectory directory;
  const std::string code = directory.path() + "/code";
  CHECK(shell("( shardplan list models 2> " + code + ".err; echo $? > " + code + " ) | true") == 0);
  CHECK(read_file(code) == "0\n");
  CHECK(read_file(code + ".err").empty());
}

TEST_CASE("an interrupted batch removes its temporary file") {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  CHECK(shell("cd " + path + "; mkfifo pipe; shardplan batch pipe --out answer & exec 3> pipe; " +
              "while ! ls answer.tmp.* > /dev/null 2>&1; do sleep 0.01; done; kill -TERM $!; " +
              "wait $! 2> /dev/null; test $? -eq 143") == 0);
  CHECK(std::distance(std::filesystem::directory_iterator(path), {}) == 1);
}

TEST_CASE("colour only when asked for or on a terminal") {
  const ProgramRun always = run_shardplan(estimate_words({"--color", "always"}));
  CHECK(contains(always.out, "\x1b["));
  const ProgramRun never = run_shardplan(estimate_words({"--color", "never"}));
  CHECK(!contains(never.out, "\x1b["));
}

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

TEST_CASE("search ranks by speed, counts what it pruned and says how to see a plan in full") {
  const Words words = {
      "search", "--model",        "llama3-8b", "--cluster", "1x8-h200", "--sequence-length",
      "8192",   "--global-batch", "64",        "--top",     "3",        "--fix",
      "zero=1", "--range",        "tp=1..4",   "--fix",     "cp=1",     "--format",
      "json"};
  const ProgramRun run = run_shardplan(words);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  const JsonValue answer = json_of(run);
  const std::vector<JsonValue>& top = at(answer, "top").items;
  REQUIRE(top.size() == 3);
  double previous = 1e300;
  for (const JsonValue& plan : top) {
    CHECK(at(plan, "tokens_per_s_per_gpu").real <= previous);
    previous = at(plan, "tokens_per_s_per_gpu").real;
    CHECK(at(at(plan, "plan"), "tp").integer <= 4);
    CHECK(at(plan, "peak_allocated").integer <= at(at(answer, "memory_rule"), "limit").integer);
  }
  std::int64_t pruned = 0;
  for (const JsonValue& count : at(answer, "pruned").items) {
    pruned += at(count, "plans").integer;
  }
  CHECK(pruned + at(answer, "plans_fitting").integer == at(answer, "plans_in_space").integer);
}

TEST_CASE("the command that search prints estimates the same plan to the byte") {
  const ProgramRun run = run_shardplan({"search", "--model", "llama3-8b", "--cluster", "1x8-h200",
                                        "--sequence-length", "8192", "--global-batch", "64",
                                        "--top", "1", "--fix", "cp=1", "--format", "json"});
  REQUIRE(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const JsonValue& best = at(answer, "top").items.front();
  std::string command = at(best, "command").string;
  REQUIRE(command.starts_with("shardplan estimate "));
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/estimate.json";
  CHECK(shell(command + " --format json --out " + path) == 0);
  const JsonValue estimate = parse_json(read_file(path), path);
  const JsonValue& predicted = at(estimate, "predicted");
  CHECK(at(predicted, "step_time_s").real == at(best, "step_time_s").real);
  std::int64_t most = 0;
  for (const JsonValue& stage : at(predicted, "stages").items) {
    most = std::max(most, at(stage, "peak_allocated").integer);
  }
  CHECK(most == at(best, "peak_allocated").integer);
}

TEST_CASE("a search in which nothing fits exits with 1 and shows what the smallest plan needs") {
  const Words words = {"search",   "--model",           "llama3-70b", "--cluster",
                       "1x8-h200", "--sequence-length", "8192",       "--global-batch",
                       "8",        "--gpu-memory",      "16GiB",      "--fix",
                       "cp=1"};
  const ProgramRun run = run_shardplan(words);
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "NOTHING FITS"));
  CHECK(contains(run.out, "the smallest valid plan allocates"));
  CHECK(contains(run.out, "shardplan estimate --model llama3-70b"));
}

TEST_CASE("without shardplan-validate its commands say in one line how to build it") {
  const TemporaryDirectory alone;
  const std::string program = alone.path() + "/shardplan";
  std::filesystem::copy_file(built_program("shardplan"), program);
  for (const char* command : {"validate", "calibrate"}) {
    const ProgramRun run =
        StartedProgram(program, {command, "cases.jsonl"}, {"PATH=/nowhere"}).wait();
    check_refused(run, 3);
    CHECK(contains(run.err, "to build it: cmake --preset release"));
  }
}

TEST_CASE("every listing has rows in every format") {
  for (const Words& listing : {Words{"models"}, Words{"gpus"}, Words{"clusters"},
                               Words{"frameworks"}, Words{"options", "megatron"}}) {
    for (const char* format : {"table", "csv", "json"}) {
      Words words = {"list"};
      words.insert(words.end(), listing.begin(), listing.end());
      words.insert(words.end(), {"--format", format});
      const ProgramRun run = run_shardplan(words);
      INFO(listing.front() << " " << format);
      CHECK(run.exit_code == 0);
      CHECK(run.out.size() > 100);
    }
  }
}

TEST_CASE("help and version answer on standard output") {
  for (const Words& words : {Words{"help"}, Words{"--help"}, Words{"help", "estimate"},
                             Words{"search", "--help"}, Words{"version"}, Words{"--version"}}) {
    const ProgramRun run = run_shardplan(words);
    INFO(words.front());
    CHECK(run.exit_code == 0);
    CHECK(!run.out.empty());
    CHECK(run.err.empty());
  }
}

}  // namespace shardplan
