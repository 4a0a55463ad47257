// Two answers of the program against committed files, to the byte. After an intended change of the
// model: SHARDPLAN_UPDATE_GOLDEN=1 build/tools_tests -tc='golden*', then read the diff.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

void check_golden(const std::string& name, const std::vector<std::string>& words,
                  int exit_code = 0) {
  const std::string path =
      std::string(SHARDPLAN_SOURCE_DIR) + "/tests/tools/commands/golden/" + name;
  const ProgramRun run = run_shardplan(words);
  CHECK(run.exit_code == exit_code);
  CHECK(run.err.empty());
  if (std::getenv("SHARDPLAN_UPDATE_GOLDEN") != nullptr) {
    write_file(path, run.out);
  }
  CHECK(read_file(path) == run.out);
}

}  // namespace

TEST_CASE("golden: the estimate of one plan of Llama-3-8B") {
  check_golden("estimate_llama3_8b.json",
               {"estimate", "--model",        "llama3-8b", "--cluster",
                "1x8-h200", "--framework",    "megatron",  "--sequence-length",
                "8192",     "--global-batch", "64",        "--micro-batch",
                "1",        "--tp",           "2",         "--pp",
                "2",        "--dp",           "2",         "--format",
                "json"});
}

TEST_CASE("golden: the ten fastest plans of Llama-3-8B on eight GPUs") {
  check_golden("search_llama3_8b.csv",
               {"search", "--model", "llama3-8b", "--cluster", "1x8-h200", "--sequence-length",
                "8192", "--global-batch", "64", "--top", "10", "--format", "csv"});
}

TEST_CASE("golden: advice for a plan of Llama-3-8B that does not fit") {
  check_golden(
      "advise_llama3_8b.json",
      {"advise", "--model", "llama3-8b", "--cluster", "1x8-h100", "--sequence-length", "8192",
       "--global-batch", "64", "--micro-batch", "2", "--top", "4", "--format", "json"},
      1);
}

TEST_CASE("golden: how the bytes of a plan of Llama-3-8B grow along every axis") {
  check_golden("scaling_llama3_8b.csv",
               {"advise", "--model", "llama3-8b", "--cluster", "1x8-h100", "--sequence-length",
                "8192", "--global-batch", "64", "--tp", "4", "--scaling", "--format", "csv"});
}

TEST_CASE("golden: the cheapest of four clusters for a target") {
  check_golden("sweep_llama3_8b.csv", {"search",    "--model",
                                       "llama3-8b", "--gpu",
                                       "h100,h200", "--num-gpus",
                                       "16,32",     "--sequence-length",
                                       "8192",      "--global-batch",
                                       "256",       "--fix",
                                       "pp=1",      "--tokens",
                                       "1e12",      "--target-days",
                                       "60",        "--price-per-gpu-hour",
                                       "3",         "--format",
                                       "csv"});
}

}  // namespace shardplan
