// The trainer's program as `estimate` shows it.
#include "tools/commands/program_report.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

ProgramRun estimate(const Words& more) {
  Words words = {"estimate",          "--model", "llama3-8b",      "--cluster", "1x8-h200",
                 "--sequence-length", "8192",    "--global-batch", "16"};
  words.insert(words.end(), more.begin(), more.end());
  return run_shardplan(words);
}

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; std::getline(in, word, separator);) {
    if (!word.empty() || separator == ',') {
      words.push_back(word);
    }
  }
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  return words_of(text, '\n');
}

// Of a number with separators.
std::string digits_of(std::string number) {
  std::erase(number, ',');
  return number;
}

TEST_CASE("the program's tensors stand beside the estimate's rows and are equal") {
  const ProgramRun run = estimate({"--framework", "native", "--tp", "2", "--pp", "2", "--program"});
  CHECK(run.exit_code == 0);
  const std::size_t start = run.out.find("\nProgram of rank 0 (stage 0): ");
  REQUIRE(start != std::string::npos);
  const std::vector<std::string> lines = lines_of(run.out.substr(start));
  constexpr std::size_t kHead = 2;
  REQUIRE(lines.size() > kHead + 30);
  std::int64_t sum = 0;
  for (std::size_t i = kHead; i < lines.size(); ++i) {
    const Words words = words_of(lines[i], ' ');  // component, tensor, estimate, program, at most
    REQUIRE(words.size() == 5);
    CHECK(words[2] == words[3]);
    sum += std::stoll(digits_of(words[3]));
    CHECK(std::stoll(digits_of(words[3])) <= std::stoll(digits_of(words[4])));
  }
  CHECK(digits_of(lines[0]).find(": " + std::to_string(sum) + " bytes") != std::string::npos);
}

TEST_CASE("of many microbatches a program shows as many as say everything, and says so") {
  const TemporaryDirectory directory;
  const auto timeline = [&](const std::string& microbatches) {
    const std::string path = directory.path() + "/" + microbatches + ".csv";
    const ProgramRun run = run_shardplan({"estimate",
                                          "--model",
                                          "llama3-8b",
                                          "--cluster",
                                          "1x8-h200",
                                          "--sequence-length",
                                          "1024",
                                          "--framework",
                                          "native",
                                          "--tp",
                                          "4",
                                          "--pp",
                                          "2",
                                          "--vpp",
                                          "2",
                                          "--schedule",
                                          "interleaved_1f1b",
                                          "--num-microbatches",
                                          microbatches,
                                          "--memory-timeline",
                                          path});
    CHECK(run.exit_code == 0);
    const std::string warning =
        "shardplan: warning: --memory-timeline: shows a step of 64 microbatches, not " +
        microbatches + ": those left out repeat the middle\n";
    CHECK(run.err == (microbatches == "64" ? "" : warning));
    return read_file(path);
  };
  const std::string all = timeline("64");
  CHECK(all == timeline("66"));
  CHECK(all == timeline("512"));
  const ProgramRun gpipe =
      run_shardplan({"estimate", "--model", "llama3-8b", "--cluster", "1x8-h200",
                     "--sequence-length", "1024", "--framework", "native", "--pp", "8",
                     "--schedule", "gpipe", "--num-microbatches", "512", "--program"});
  CHECK(gpipe.exit_code == 2);
  CHECK(gpipe.err ==
        "shardplan: error: --program: found 512 microbatches under schedule gpipe, expected "
        "at most 64\n");
}

TEST_CASE("the memory of a step over time adds up at every operation") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/memory.csv";
  const ProgramRun run = estimate({"--framework", "native", "--memory-timeline", path});
  CHECK(run.exit_code == 0);
  const std::vector<std::string> lines = lines_of(read_file(path));
  const Words columns = words_of(lines[0], ',');
  constexpr std::size_t kTotal = 6;
  REQUIRE(columns[kTotal] == "total_bytes");
  CHECK(columns[kTotal + 1] == "weights");
  REQUIRE(lines.size() > 1000);
  std::int64_t wrong = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const Words cells = words_of(lines[i], ',');
    REQUIRE(cells.size() == columns.size());
    std::int64_t sum = 0;
    for (std::size_t c = kTotal + 1; c < cells.size(); ++c) { sum += std::stoll(cells[c]); }
    wrong += sum == std::stoll(cells[kTotal]) && cells[0] == std::to_string(i - 1) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("plans and frameworks without a program are refused by name") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/memory.csv";
  const ProgramRun megatron = estimate({"--framework", "megatron", "--memory-timeline", path});
  CHECK(megatron.exit_code == 2);
  CHECK(megatron.err ==
        "shardplan: error: --memory-timeline: found framework megatron, expected native: other "
        "frameworks "
        "have no program\n");
  const ProgramRun ulysses = estimate({"--framework", "native", "--cp", "2", "--cp-method", "a2a",
                                       "--program", "--memory-timeline", path});
  CHECK(ulysses.exit_code == 2);
  CHECK(ulysses.err ==
        "shardplan: error: --program: found plan.cp_method: a2a, which the trainer does not run "
        "yet, so "
        "that there is no program\n");
  CHECK(std::filesystem::is_empty(directory.path()));
  const ProgramRun json = estimate({"--framework", "native", "--program", "--format", "json"});
  CHECK(json.exit_code == 2);
  CHECK(json.err == "shardplan: error: --program: found --format json, expected table\n");
}

}  // namespace
}  // namespace shardplan
