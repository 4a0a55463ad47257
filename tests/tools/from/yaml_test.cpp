// Megatron-LM's configurations in YAML: what shells and envsubst make of their values.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/tools/run_program.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kModel =
    "MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 256\n  --num-attention-heads: 8\n"
    "  --seq-length: 512\n  --max-position-embeddings: 512\n  --micro-batch-size: 1\n"
    "  --vocab-size: 1000\n  --bf16: true\n";

std::vector<std::string> values_of(const RunSettings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings.arguments, name, &Setting::name);
  return found == settings.arguments.end() ? Words{"(none)"} : found->values;
}

}  // namespace

TEST_CASE("a value in quotes of a shell is read without them") {
  const RunSettings settings = settings_from_yaml(
      "MODEL_ARGS:\n  --moe-layer-freq: \"'([0]*1+[1]*60)'\"\n  --stop-words: '\"the\"'\n"
      "  --a: \"'b' 'c'\"\n",
      "c.yaml");
  CHECK(values_of(settings, "--moe-layer-freq") == Words{"([0]*1+[1]*60)"});
  CHECK(values_of(settings, "--stop-words") == Words{"the"});
  CHECK(values_of(settings, "--a") == Words{"'b' 'c'"});  // two words
}

TEST_CASE("variables in a configuration are those of --set, and stay open without it") {
  const std::string text =
      "MODEL_ARGS:\n  --tensor-model-parallel-size: ${TP}\n  --sequence-parallel: ${SP}\n"
      "  --load: $LOAD_PATH/a-${TP}\n  --save: ${X:-y}$\n";
  const RunSettings open = settings_from_yaml(text, "c.yaml");
  CHECK(values_of(open, "--tensor-model-parallel-size") == Words{"${TP}"});
  CHECK(values_of(open, "--load") == Words{"$LOAD_PATH/a-${TP}"});
  CHECK(open.variables == Words{"TP", "SP", "LOAD_PATH", "TP"});
  const RunSettings set = settings_from_yaml(text, "c.yaml", {"TP=2", "SP=true", "LOAD_PATH=/x"});
  CHECK(values_of(set, "--tensor-model-parallel-size") == Words{"2"});
  CHECK(values_of(set, "--sequence-parallel").empty());
  CHECK(values_of(set, "--load") == Words{"/x/a-2"});
  CHECK(values_of(set, "--save") == Words{"${X:-y}$"});  // not envsubst's
  CHECK(values_of(settings_from_yaml(text, "c.yaml", {"SP=false"}), "--sequence-parallel") ==
        Words{"(none)"});
}

TEST_CASE("--set stands in place of a file's own value, whatever that is") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/c.yaml";
  write_file(file, std::string(kModel) +
                       "  --tensor-model-parallel-size: ${TP}\n  --sequence-parallel: ${SP}\n");
  const auto run = [&](const Words& more) {
    Words words = {"estimate", "--cluster", "1x8-h100", "--from", file};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words);
  };
  CHECK(run({}).exit_code == 2);
  CHECK(run({"--set", "TP=2"}).err.find("--sequence-parallel: found 1 values, \"${SP}\"") !=
        std::string::npos);
  for (const Words& words :
       {Words{"--set", "TP=2", "--set", "SP=true"},
        Words{"--set", "TP=2", "--set", "sequence-parallel=true"},
        Words{"--set", "tensor-model-parallel-size=2", "--set", "sequence-parallel=true"}}) {
    const ProgramRun answer = run(words);
    CHECK(answer.exit_code == 0);
    CHECK(answer.out.find("sequence_parallel on") != std::string::npos);
  }
  CHECK(run({"--set", "TP=2", "--set", "SP=false"}).out.find("sequence_parallel off") !=
        std::string::npos);
}

TEST_CASE("the parameters of a model whose vocabulary is not known are not counted") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/c.yaml";
  std::string text = kModel;
  text.replace(text.find("--vocab-size: 1000"), 18, "--tokenizer-type: HuggingFaceTokenizer");
  write_file(file, text + "  --perform-rl-step: true\n");
  const auto run = [&](const std::string& format) {
    return run_in_full({"estimate", "--cluster", "1x8-h100", "--from", file, "--format", format});
  };
  CHECK(run("json").exit_code == 2);
  CHECK(run("json").out.find("\"parameters\":null") != std::string::npos);
  CHECK(run("json").err.find("--vocab-size: found nothing") != std::string::npos);
  CHECK(run("table").out.find("derived") == std::string::npos);
  CHECK(run_in_full(
            {"estimate", "--cluster", "1x8-h100", "--from", file, "--find-max", "micro_batch"})
            .exit_code == 2);
}

}  // namespace shardplan
