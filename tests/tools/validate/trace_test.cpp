// The timeline of a real step that `validate` writes, on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tests/tools/run_program.h"
#include "tests/tools/validate/cases.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

class TracedBatch {
 public:
  explicit TracedBatch(const std::string& lines) { write_file(cases(), lines); }

  ProgramRun run(const Words& more = {}, const Words& variables = {}) const {
    Words words = {"validate", cases(), "--backend", "host", "--steps", "2",    "--warmup", "1",
                   "--format", "json",  "--timeout", "5",    "--trace", trace()};
    words.insert(words.end(), more.begin(), more.end());
    return StartedProgram(built_program("shardplan-validate"), words, variables).wait();
  }
  std::string trace() const { return folder_.path() + "/trace.json"; }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

 private:
  std::string cases() const { return folder_.path() + "/cases.jsonl"; }
  TemporaryDirectory folder_;
};

double number(const JsonValue& value) {
  return value.kind == JsonKind::kInteger ? static_cast<double>(value.integer) : value.real;
}

const SmallCase kPipeline = {
    .id = "four", .gpus = 4, .plan = R"("tp":2,"pp":2,"schedule":"1f1b","sequence_parallel":true)"};

struct Span {
  std::string name;
  double start_us = 0;
  double end_us = 0;
};

}  // namespace

TEST_CASE("a trace has every rank's operations, in order on every stream, sends before receives") {
  const TracedBatch batch(case_line(kPipeline));
  const ProgramRun run = batch.run();
  CHECK(run.exit_code == 0);
  CHECK(run.err == "");
  const JsonValue trace = parse_json(read_file(batch.trace()), "trace");
  std::map<std::int64_t, std::string> processes;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Span>> streams;
  double end_us = 0;
  for (const JsonValue& event : member(trace, {"traceEvents"}).items) {
    const std::int64_t process = member(event, {"pid"}).integer;
    const std::string name = member(event, {"name"}).string;
    if (member(event, {"ph"}).string == "M" && name == "process_name") {
      processes[process] = member(event, {"args", "name"}).string;
    }
    if (member(event, {"ph"}).string != "X") {
      continue;
    }
    const double start_us = number(member(event, {"ts"}));
    const Span span = {name, start_us, start_us + number(member(event, {"dur"}))};
    CHECK(start_us >= 0);
    CHECK(member(event, {"args", "operation"}).string != "");
    streams[{process, member(event, {"tid"}).integer}].push_back(span);
    end_us = std::max(end_us, span.end_us);
  }
  CHECK(processes ==
        std::map<std::int64_t, std::string>{
            {0, "four: rank 0"}, {1, "four: rank 1"}, {2, "four: rank 2"}, {3, "four: rank 3"}});
  for (const auto& [stream, spans] : streams) {
    for (std::size_t i = 1; i < spans.size(); ++i) {
      CHECK(spans[i].start_us >= spans[i - 1].end_us - 0.001);
    }
  }
  const JsonValue about = member(trace, {"otherData", "runs", "0"});
  CHECK(end_us == doctest::Approx(number(member(about, {"traced_step_s"})) * 1e6).epsilon(1e-6));
  CHECK(number(member(about, {"measured_step_s"})) > 0);
  // The first send of stage 0 begins before the first receive of stage 1 ends: one clock.
  const auto first = [&](std::int64_t process, const std::string& part) {
    Span earliest = {.name = "", .start_us = 1e18};
    for (const auto& [stream, spans] : streams) {
      for (const Span& span : spans) {
        const bool is_it = stream.first == process && span.name.find(part) != std::string::npos;
        earliest = is_it && span.start_us < earliest.start_us ? span : earliest;
      }
    }
    return earliest;
  };
  CHECK(first(0, "send").start_us < 1e18);
  CHECK(first(2, "receive").end_us > first(0, "send").start_us);
}

TEST_CASE("several plans share a file; one that fails leaves nothing of its own") {
  SmallCase broken = kPipeline;
  broken.id = "broken";
  broken.plan = R"("tp":3)";
  const TracedBatch batch(case_lines({{.id = "one"}, broken, {.id = "two"}}));
  CHECK(batch.run().exit_code == 1);
  const JsonValue trace = parse_json(read_file(batch.trace()), "trace");
  const JsonValue runs = member(trace, {"otherData", "runs"});
  REQUIRE(runs.items.size() == 2);
  CHECK(member(runs, {"1", "id"}).string == "two");
  std::set<std::int64_t> processes;
  for (const JsonValue& event : member(trace, {"traceEvents"}).items) {
    processes.insert(member(event, {"pid"}).integer);
  }
  CHECK(processes == std::set<std::int64_t>{0, 1});
}

TEST_CASE("a rank that dies in the traced step leaves no file, and the batch says why") {
  const TracedBatch batch(case_line(kPipeline));
  // Steps count from 0: one of warm-up, two measured, then the traced one.
  const ProgramRun run = batch.run({}, {"SHARDPLAN_FAULT=kill rank=1 step=3"});
  CHECK(run.exit_code != 0);
  CHECK_FALSE(std::filesystem::exists(batch.trace()));
  CHECK(batch.num_files() == 1);
  CHECK(run.err.find("no plan ran, nothing is written to " + batch.trace()) != std::string::npos);
}

}  // namespace shardplan
