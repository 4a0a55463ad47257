// The files that commands read and write: what cannot be read, what two outputs would share.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

Words native(const Words& more) {
  return with_options(estimate_words(more), "--framework native");
}

}  // namespace

TEST_CASE("a file whose reading fails, and a device, are refused by name wherever one is read") {
  const Words job = {"--model",           "llama3-8b", "--cluster",      "1x8-h100",
                     "--sequence-length", "8192",      "--global-batch", "64"};
  Words why_oom = {"why-oom", ""};
  why_oom.insert(why_oom.end(), job.begin(), job.end());
  Words estimate = {"estimate"};
  estimate.insert(estimate.end(), job.begin(), job.end());
  estimate[2] = "";
  for (const auto& [file, problem] :
       {std::pair<std::string, std::string>{"/proc/self/mem", ": cannot be read: Input/output"},
        {"/dev/zero", ": found a device, expected a file"}}) {
    for (Words words : {Words{"batch", ""}, Words{"accuracy", ""}, why_oom, estimate}) {
      *std::ranges::find(words, "") = file;
      const ProgramRun run = run_in_full(words);
      INFO(words.front() << ": " << run.err);
      CHECK(run.exit_code == 2);
      CHECK(num_lines(run.err) == 1);
      CHECK(contains(run.err, file + problem));
    }
  }
}

TEST_CASE("case lines are read from a named pipe and from a device on standard input") {
  const TemporaryDirectory directory;
  const std::string pipe = directory.path() + "/pipe";
  CHECK(shell("mkfifo " + pipe + "; echo > " + pipe + " & shardplan batch " + pipe) == 0);
  CHECK(shell("shardplan batch - < /dev/null") == 0);
}

TEST_CASE("of two outputs in one place none is lost: both options are refused by name") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/answer";
  const std::string same = directory.path() + "/./answer";
  const std::string link = directory.path() + "/link";
  std::filesystem::create_symlink("answer", link);
  for (const Words& words : {Words{"--memory-timeline", file, "--trace", file},
                             {"--out", file, "--trace", file},
                             {"--out", file, "--memory-timeline", file},
                             {"--out", file, "--trace", same},
                             {"--out", file, "--trace", link},
                             {"--trace", "-"}}) {
    const ProgramRun run = run_in_full(native(words));
    INFO(run.err);
    check_refused(run, 2);
    CHECK(contains(run.err, words[0] + (words.size() > 2 ? "" : " and --out")));
    CHECK(contains(run.err, words.size() > 2 ? words[2] : "standard output"));
  }
  CHECK(!std::filesystem::exists(file));
  CHECK(run_in_full(estimate_words({"--out", file, "--trace", "-"})).exit_code == 0);
}

TEST_CASE("no answer takes the place of a file that the question reads, by whatever name") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/asked";
  const std::string twin = directory.path() + "/twin";
  write_file(file, "{}");
  std::filesystem::create_hard_link(file, twin);
  for (const std::string& answer : {file, directory.path() + "/./asked", twin}) {
    for (const Words& words : {Words{"batch", file, "--out", answer},
                               {"accuracy", file, "--out", answer},
                               {"why-oom", file, "--out", answer},
                               {"why-oom", "-", "--case", file, "--out", answer},
                               {"estimate", "--model", file, "--trace", answer},
                               {"search", "--cluster", file, "--out", answer},
                               {"advise", "--from", file + ":3", "--out", answer}}) {
      const ProgramRun run = run_in_full(words);
      INFO(run.err);
      check_refused(run, 2);
      CHECK(contains(run.err, "found '" + answer + "', the file '" + file + "' that is read"));
      CHECK(read_file(file) == "{}");
    }
  }
}

TEST_CASE("a compressed file is refused with what reads it") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/run.log.gz";
  write_file(file, "\x1f\x8b\x08");
  for (const Words& words : {Words{"batch", file}, Words{"accuracy", file}}) {
    const ProgramRun run = run_in_full(words);
    INFO(run.err);
    check_refused(run, 2);
    CHECK(contains(run.err, file + ": found a file compressed by gzip, expected its text"));
    CHECK(contains(run.err, "zcat FILE | shardplan"));
  }
}

}  // namespace shardplan
