// The built program as a user meets it: mistakes, exit codes, files and pipes.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/tools/commands/answer.h"

namespace shardplan {

TEST_CASE("mistakes exit with 2 and one line that names the flag or the preset") {
  const std::vector<std::pair<Words, std::string>> mistakes = {
      {{}, "no command"},
      {{"estimat"}, "did you mean \"estimate\"?"},
      {{"estimate"}, "--model, --cluster, --sequence-length and --global-batch are missing"},
      {estimate_words({"--tp", "-1"}), "--tp: found '-1'"},
      {estimate_words({"--tpp", "2"}), "did you mean \"--tp\"?"},
      {estimate_words({"extra"}), "found 'extra'"},
      {estimate_words({"--num-microbatches", "4"}), "found both"},
      {estimate_words({"--num-gpus", "12"}), "a multiple of the 8 GPUs"},
      {estimate_words({"--framework-option", "swiglu"}), "expected KEY=VALUE"},
      {estimate_words({"--framework-option", "swiglo=fused"}), "swiglu"},
      {estimate_words({"--set", "foo=1"}), "--set foo=1: found unknown option \"foo\""},
      {{"list", "modles"}, "did you mean \"models\"?"},
      {{"list", "options"}, "expected models"},
      {{"batch"}, "expected one file of case lines"},
      {{"batch", "/nowhere/cases.jsonl"}, "/nowhere/cases.jsonl: found no readable file"},
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

TEST_CASE("scripts of shells know every command, its options and the values that are words") {
  for (const char* const shell : {"bash", "zsh", "fish"}) {
    const ProgramRun run = run_shardplan({"completion", shell});
    CAPTURE(shell);
    CHECK(run.exit_code == 0);
    for (const char* const word : {"why-oom", "sequence-length", "llama3-8b", "interleaved"}) {
      CHECK(contains(run.out, word));
    }
  }
  check_refused(run_shardplan({"completion", "tcsh"}), 2);
}

TEST_CASE("words of tables and options are explained, with the numbers of a job") {
  for (const char* const word :
       {"activ",     "params",  "grads",      "optim",        "temps",    "comm",
        "workspace", "context", "allocated",  "reserved",     "required", "device used",
        "peak at",   "rank",    "tie",        "tokens/s/GPU", "step s",   "MFU",
        "tp",        "pp",      "vpp",        "cp",           "ep",       "etp",
        "dp",        "rep",     "zero",       "mbs",          "sp",       "schedule",
        "recompute", "notes",   "grad-dtype", "1f1b",         "TIGHT",    "qlora"}) {
    const ProgramRun run = run_shardplan({"explain", word});
    INFO(word << ": " << run.err);
    CHECK(run.exit_code == 0);
  }
  const ProgramRun batch = run_shardplan({"explain", "global_batch", "--model", "llama3-8b",
                                          "--cluster", "1x8-h100", "--tp", "4", "--sequence-length",
                                          "4096", "--global-batch", "32", "--micro-batch", "2"});
  CHECK(contains(batch.out, "global batch 32 = micro-batch 2 x microbatches 8 x dp 2"));
  check_refused(run_shardplan({"explain", "flux"}), 2);
  check_refused(run_shardplan({"explain", "zero", "--format", "json"}), 2);
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

TEST_CASE("a batch that a signal ends leaves nothing, and the next one is not disturbed") {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  CHECK(shell("mkfifo " + path + "/pipe") == 0);
  // `sh` has commands in the background ignore SIGINT, env does not.
  const std::string begin = "cd " + path + "; env --default-signal=INT shardplan batch pipe " +
                            "--out answer & exec 3> pipe; echo x >&3; sleep 0.2; ";
  for (const char* end : {"HUP 129", "INT 130", "KILL 137", "TERM 143"}) {
    CAPTURE(end);
    std::string line = begin;
    line.append("set -- ").append(end).append(
        "; kill -$1 $!; wait $! 2> /dev/null; test $? -eq $2");
    CHECK(shell(line) == 0);
    CHECK(std::distance(std::filesystem::directory_iterator(path), {}) == 1);
  }
}

TEST_CASE("colour only when asked for or on a terminal") {
  const ProgramRun always = run_shardplan(estimate_words({"--color", "always"}));
  CHECK(contains(always.out, "\x1b["));
  const ProgramRun never = run_shardplan(estimate_words({"--color", "never"}));
  CHECK(!contains(never.out, "\x1b["));
}

}  // namespace shardplan
