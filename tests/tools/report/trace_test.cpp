// The timeline that `estimate` writes for Perfetto and chrome://tracing.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

double number(const JsonValue& value) {
  return value.kind == JsonKind::kInteger ? static_cast<double>(value.integer) : value.real;
}

TEST_CASE("a trace is JSON of one process per stage that ends with the predicted step") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/step.json";
  const ProgramRun run = run_shardplan(
      estimate_words({"--tp", "2", "--pp", "4", "--sequence-parallel", "on", "--trace", path}));
  CHECK(run.exit_code == 0);
  CHECK(run.err == "");
  const JsonValue trace = parse_json(read_file(path), path);
  double end_us = 0;
  std::set<std::int64_t> processes;
  std::set<std::string> kinds;
  for (const JsonValue& event : at(trace, "traceEvents").items) {
    kinds.insert(at(event, "ph").string);
    processes.insert(at(event, "pid").integer);
    if (at(event, "ph").string == "X") {
      CHECK(number(at(event, "dur")) >= 0);
      end_us = std::max(end_us, number(at(event, "ts")) + number(at(event, "dur")));
    }
  }
  CHECK(processes == std::set<std::int64_t>{0, 1, 2, 3});
  CHECK(kinds == std::set<std::string>{"M", "X", "C"});
  const JsonValue& about = at(trace, "otherData");
  CHECK(end_us == doctest::Approx(number(at(about, "step_time_s")) * 1e6).epsilon(1e-6));
  for (const JsonValue& stage : at(about, "stages").items) {
    CHECK(number(at(stage, "busy_s")) + number(at(stage, "bubble_s")) ==
          doctest::Approx(number(at(about, "end_s"))).epsilon(1e-9));
  }
}

TEST_CASE("no trace is written of a plan without numbers, nor half of one") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/step.json";
  CHECK(run_shardplan(estimate_words({"--tp", "3", "--trace", path})).exit_code == 1);
  CHECK_FALSE(std::filesystem::exists(path));
  const ProgramRun run =
      run_shardplan(estimate_words({"--trace", folder.path() + "/missing/step.json"}));
  CHECK(run.exit_code == 3);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a trace of thousands of microbatches says that it is cut, and stays small") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/step.json";
  Words words = estimate_words({"--pp", "8", "--trace", path});
  std::ranges::replace(words, "64", "8000");
  const ProgramRun run = run_shardplan(words);
  CHECK(run.err.find("shows the first and the last of each stage's 16,000 actions") !=
        std::string::npos);
  CHECK(std::filesystem::file_size(path) < (64 << 20));
}

}  // namespace
}  // namespace shardplan
