#include "tools/commands/support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "tests/tools/commands/answer.h"
#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

const FeatureSupport& of(const std::vector<FeatureSupport>& features, const std::string& name) {
  const auto found = std::ranges::find(features, name, &FeatureSupport::feature);
  REQUIRE(found != features.end());
  return *found;
}

}  // namespace

TEST_CASE("what a framework supports is what its rules take") {
  const Library library;
  const std::vector<FeatureSupport> megatron = support_of("megatron", library);
  CHECK(of(megatron, "tp").refusal.empty());
  CHECK(of(megatron, "tp").measured_runs > 40);
  CHECK(of(megatron, "QLoRA").refusal.find("quanti") != std::string::npos);
  const std::vector<FeatureSupport> torchtitan = support_of("torchtitan", library);
  CHECK(of(torchtitan, "zero 3").refusal.empty());
  CHECK(of(torchtitan, "zero 1").refusal.find("not modelled") != std::string::npos);
  const std::vector<FeatureSupport> transformers = support_of("transformers", library);
  CHECK(of(transformers, "QLoRA").refusal.empty());
  CHECK(of(transformers, "tp").refusal.empty());
  CHECK(of(transformers, "tp").measured_runs >= 6);
  CHECK_FALSE(of(transformers, "pp").refusal.empty());
}

TEST_CASE("nothing that is refused was measured by the version that refuses it") {
  const Library library;
  for (const std::string& framework : library.framework_names()) {
    for (const FeatureSupport& each : support_of(framework, library)) {
      CHECK_MESSAGE((each.refusal.empty() || each.measured_runs == 0),
                    framework << " " << each.feature << ": " << each.refusal);
    }
  }
}

TEST_CASE("support fits one screen, and says the same in every format") {
  const ProgramRun text = run_shardplan({"support"});
  CHECK(text.exit_code == 0);
  CHECK(num_lines(text.out) <= 24);
  const ProgramRun csv = run_shardplan({"support", "--format", "csv"});
  CHECK(contains(csv.out, "framework,version,feature,status,measured_runs,options,refusal"));
  CHECK(contains(csv.out, "torchtitan,v0.2.2,zero 1,refused,0,'--zero 1,"));
  const ProgramRun json = run_shardplan({"support", "--framework", "Megatron-LM", "--json"});
  CHECK(contains(json.out, "\"framework\":\"megatron\""));
  const ProgramRun one = run_shardplan({"support", "--framework", "nanotron"});
  CHECK(contains(one.out, "nanotron@v0.4"));
  CHECK(contains(one.out, "not modelled"));
}

TEST_CASE("explain uses the options of a job that it is given, and says which it took itself") {
  const ProgramRun whole = run_shardplan({"explain", "zero"});
  CHECK(contains(whole.out, "llama3-8b on 1x8-h200, tp 2, pp 2"));
  const ProgramRun some = run_shardplan({"explain", "dp", "--tp", "4", "--model", "qwen3-8b"});
  CHECK(some.exit_code == 0);
  for (const char* const option : {"--cluster", "--sequence-length", "--global-batch"}) {
    CHECK(contains(some.out, option));
  }
  CHECK_FALSE(contains(some.out, "--model"));
  CHECK(run_shardplan({"explain", "dp", "--tp", "4"}).out !=
        run_shardplan({"explain", "dp", "--tp", "8"}).out);
  const ProgramRun broken = run_shardplan({"explain", "dp", "--tp", "3"});
  CHECK(contains(broken.out, "no numbers: "));
}

TEST_CASE("a first answer is one command away from the overview, which fits one screen") {
  const ProgramRun help = run_shardplan({"--help"});
  CHECK(num_lines(help.out) <= 24);
  const std::size_t at = help.out.find("shardplan estimate ");
  REQUIRE(at != std::string::npos);
  std::istringstream line(help.out.substr(at, help.out.find('\n', at) - at));
  std::vector<std::string> words;
  for (std::string word; line >> word;) { words.push_back(word); }
  words.erase(words.begin());
  const ProgramRun first = run_shardplan(words);
  CHECK(first.exit_code <= 1);
  CHECK(contains(first.out, "GiB"));
}

}  // namespace shardplan
