// What `validate` refuses before anything runs, and the line of a case that cannot be read.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/tools/run_program.h"
#include "tests/tools/validate/cases.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

ProgramRun validate(const std::string& lines, const Words& more) {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, lines);
  Words words = {"validate", cases, "--backend", "host", "--steps", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return StartedProgram(built_program("shardplan-validate"), words, {}).wait();
}

}  // namespace

TEST_CASE("an output that cannot be made and a time of nothing are refused before the first run") {
  const std::vector<std::pair<Words, std::string>> refused = {
      {{"--trace", "/nowhere/trace.json"}, "/nowhere/trace.json: cannot create"},
      {{"--journal", "/dev/full"}, "/dev/full: is no regular file"},
      {{"--journal", "/dev/zero"}, "/dev/zero: is no regular file"},
      {{"--journal", "/tmp/one", "--out", "/tmp/one"}, "--journal and --out"},
      {{"--timeout", "0"}, "--timeout: found '0', expected a number above 0"},
      {{"--timeout", "1e-5"}, "--timeout: found '1e-5', expected a number above 0"}};
  for (const auto& [words, part] : refused) {
    const ProgramRun run = validate(case_line({}), words);
    INFO(run.err);
    CHECK(run.exit_code == (words.size() > 2 || words[0] == "--timeout" ? 2 : 3));
    CHECK(run.out.empty());
    CHECK(run.err.find(part) != std::string::npos);
  }
}

TEST_CASE("no answer, timeline or journal takes the place of the cases, by whatever name") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  const std::string link = folder.path() + "/link.jsonl";
  const std::string twin = folder.path() + "/twin.jsonl";
  write_file(cases, case_line({}));
  std::filesystem::create_symlink("cases.jsonl", link);
  std::filesystem::create_hard_link(cases, twin);
  for (const std::string option : {"--out", "--trace", "--journal"}) {
    for (const std::string& same : {cases, folder.path() + "/./cases.jsonl", link, twin}) {
      const ProgramRun run =
          StartedProgram(built_program("shardplan-validate"),
                         {"validate", cases, "--backend", "host", "--steps", "1", option, same}, {})
              .wait();
      INFO(run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.out.empty());
      CHECK(run.err.find(option + ": found '" + same + "', the file '" + cases +
                         "' that is read, expected another") != std::string::npos);
      CHECK(read_file(cases) == case_line({}));
    }
  }
}

TEST_CASE("a host without file descriptors for the processes is no bug of ours") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line({}));
  const std::string command = "ulimit -n 40; exec " + built_program("shardplan-validate") +
                              " validate " + cases + " --backend host";
  const ProgramRun run = StartedProgram("/bin/sh", {"-c", command}, {}).wait();
  CHECK(run.exit_code == 3);
  CHECK(run.err == "shardplan: error: worker: no shared memory: Too many open files\n");
}

TEST_CASE("a case that cannot be read has the line that batch gives it") {
  const std::string lines = "\n{\"id\": \"bad\"}\n";
  const JsonValue line = parse_json(validate(lines, {"--format", "json"}).out, "results");
  CHECK(member(line, {"schema"}).integer == 1);
  CHECK(member(line, {"id"}).string == "bad");
  CHECK(member(line, {"line"}).integer == 2);
  CHECK(member(line, {"framework"}).kind == JsonKind::kString);
  CHECK(member(line, {"predicted", "status"}).string == "error");
}

}  // namespace shardplan
