// Runs read from configurations of nanotron and DeepSpeed, and configurations that are no run.
#include <doctest/doctest.h>

#include "tests/data/message_of.h"
#include "tests/tools/commands/answer.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

constexpr const char* kNanotron = R"yaml(
data_stages:
- data: {dataset: null, seed: 42}
  name: Stable Training Stage
general: {project: debug, seed: 42}
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config:
    hidden_act: silu
    hidden_size: 4096
    intermediate_size: 14336
    is_llama_config: true
    num_attention_heads: 32
    num_hidden_layers: 32
    num_key_value_heads: 8
    rope_scaling: null
    tie_word_embeddings: false
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  optimizer_factory: {name: adamW, torch_adam_is_fused: true}
  zero_stage: 1
parallelism:
  dp: 2
  pp: 2
  pp_engine: 1f1b
  tp: 4
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 2
  sequence_length: 4096
)yaml";

constexpr const char* kDeepspeed = R"json({
  "bf16": {"enabled": "auto"}, "gradient_clipping": 1.0, "gradient_accumulation_steps": 4,
  "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "overlap_comm": true,
  "reduce_bucket_size": 2e8, "stage3_prefetch_bucket_size": "auto", "sub_group_size": 1e9,
  "offload_optimizer": {"device": "none"}}})json";

ProgramRun estimate(const std::string& name, const std::string& text, const Words& more) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/" + name;
  write_file(file, text);
  Words words = {"estimate", "--from", file};
  words.insert(words.end(), more.begin(), more.end());
  return run_in_full(words);
}

// Memory and time: the table of the stages and the step.
std::string numbers_of(const ProgramRun& run) {
  const std::size_t begin = run.out.find("\nMemory of one GPU");
  REQUIRE_MESSAGE(begin != std::string::npos, run.out << run.err);
  return run.out.substr(begin, run.out.find("\n\n", run.out.find("\nstep time")) - begin);
}

std::string with(std::string text, const std::string& part, const std::string& other) {
  REQUIRE(contains(text, part));
  return text.replace(text.find(part), part.size(), other);
}

}  // namespace

TEST_CASE("a configuration of nanotron is the run that its options say") {
  const ProgramRun run = estimate("run.yaml", kNanotron, {"--cluster", "2x8-h100"});
  const ProgramRun options = run_in_full({"estimate",  "--model",
                                          "llama3-8b", "--cluster",
                                          "2x8-h100",  "--framework",
                                          "nanotron",  "--sequence-length",
                                          "4096",      "--global-batch",
                                          "32",        "--micro-batch",
                                          "2",         "--tp",
                                          "4",         "--pp",
                                          "2",         "--dp",
                                          "2",         "--zero",
                                          "1",         "--sequence-parallel",
                                          "on",        "--schedule",
                                          "1f1b"});
  CHECK(numbers_of(run) == numbers_of(options));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  CHECK(contains(run.out, "framework    nanotron"));
  // Its sizes say how many ranks there are, and may be changed.
  CHECK(contains(estimate("run.yaml", kNanotron, {"--cluster", "1x8-h100"}).err, "16 ranks"));
  const ProgramRun changed =
      estimate("run.yaml", kNanotron, {"--cluster", "2x8-h100", "--tp", "8", "--set", "pp=1"});
  CHECK(contains(changed.out, "tp 8  pp 1  dp 2"));
}

TEST_CASE("what nanotron's configuration says beside that is refused or named") {
  const auto status = [](const std::string& part, const std::string& other) {
    return estimate("run.yaml", with(kNanotron, part, other), {"--cluster", "2x8-h100"});
  };
  CHECK(contains(status("hidden_act: silu", "hidden_act: gelu").out,
                 "UNSUPPORTED  model.model_config.hidden_act gelu"));
  CHECK(contains(status("name: adamW", "name: sgd").out,
                 "UNSUPPORTED  optimizer.optimizer_factory.name sgd"));
  CHECK(contains(status("zero_stage: 1", "zero_stage: 1\n  my_own: 3").err,
                 "unknown setting optimizer.my_own 3"));
  // Many of them are a line, and one each in the report.
  const ProgramRun many = status("zero_stage: 1", "zero_stage: 1\n  a: 1\n  b: 2\n  c: 3\n  d: 4");
  CHECK(contains(many.err, "run.yaml: 4 unknown settings, in no table: "));
  CHECK(contains(many.out, "unknown     optimizer.d 4"));
  CHECK(contains(status("  pp_engine: 1f1b\n", "").out, "schedule gpipe"));
  check_refused(status("  micro_batch_size: 2\n", ""), 2);
}

TEST_CASE("a size of the command line may have a suffix, one of a file stands as it is") {
  const auto with_word = [](const std::string& word) {
    return estimate("run.yaml", kNanotron, {"--cluster", "2x8-h100", "--set", word});
  };
  CHECK(numbers_of(with_word("tokens.sequence_length=2k")) ==
        numbers_of(with_word("tokens.sequence_length=2048")));
  check_refused(with_word("tokens.sequence_length=2kB"), 2);
  const Words four = {"--cluster", "2x8-h100", "--tp", "4"};
  check_refused(estimate("run.yaml", with(kNanotron, "_length: 4096", "_length: 4k"), four), 2);
  check_refused(estimate("run.yaml", with(kNanotron, "tp: 4", "tp: 1k"),
                         {"--cluster", "2x8-h100", "--pp", "2"}),
                2);
  CHECK(contains(estimate("run.yaml", kNanotron, {"--cluster", "1024x8-h100", "--tp", "1k"}).out,
                 "INVALID"));
}

// torchtitan v0.2.2 models/llama3/model/args.py: 131072, and the sequence's length where longer.
TEST_CASE("positions of a model that the framework has are not those of config.json") {
  const ProgramRun run = estimate("run.toml",
                                  "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\n"
                                  "seq_len = 16384\nlocal_batch_size = 1\n",
                                  {"--cluster", "1x8-h200"});
  CHECK(run.err.empty());
  CHECK(contains(run.out, "16,384 tokens per step"));
}

TEST_CASE("a switch of the framework and a key of the model take counts with suffixes, too") {
  const auto with_words = [](const Words& more) {
    Words words = {
        "estimate", "--model",     "llama3-8b", "--cluster",         "1x8-h100", "--zero",
        "3",        "--framework", "deepspeed", "--sequence-length", "4k",       "--global-batch",
        "8"};
    words.insert(words.end(), more.begin(), more.end());
    return numbers_of(run_in_full(words));
  };
  CHECK(with_words({"--set", "reduce_bucket_elements=64M", "--set", "vocab_size=64k"}) ==
        with_words({"--set", "reduce_bucket_elements=67108864", "--set", "vocab_size=65536"}));
}

TEST_CASE("a configuration of DeepSpeed with a model is the run that its options say") {
  const Words job = {"--model", "llama3-8b", "--cluster", "1x8-h100", "--sequence-length", "4096"};
  const ProgramRun run = estimate("ds.json", kDeepspeed, job);
  Words options = {"estimate"};
  options.insert(options.end(), job.begin(), job.end());
  for (const char* word : {"--framework", "deepspeed", "--global-batch", "64", "--micro-batch", "2",
                           "--zero", "3", "--set", "reduce_bucket_elements=200000000", "--set",
                           "prefetch_bucket_elements=15099494", "--set", "overlap_comm=on"}) {
    options.emplace_back(word);
  }
  CHECK(numbers_of(run) == numbers_of(run_in_full(options)));
  CHECK(contains(run.out, " 0 refused, 0 unknown\n"));
  CHECK(contains(run.err, "bf16.enabled: found \"auto\", took true"));
  CHECK(contains(run.err, "--recompute full says otherwise"));
  CHECK(contains(estimate("ds.json", with(kDeepspeed, "\"none\"", "\"nvme\""), job).out,
                 "UNSUPPORTED  zero_optimization.offload_optimizer.device nvme: none and cpu are "
                 "described"));
  const auto offloaded = [&](const Words& more) {
    Words all = options;
    all.insert(all.end(), more.begin(), more.end());
    return numbers_of(run_in_full(all));
  };
  CHECK(numbers_of(estimate("ds.json", with(kDeepspeed, "\"none\"", "\"cpu\""), job)) ==
        offloaded({"--offload-optimizer", "1"}));
  CHECK(numbers_of(estimate("ds.json",
                            with(kDeepspeed, "\"none\"}",
                                 "\"cpu\", \"ratio\": 0.5, \"pin_memory\": false},\n"
                                 "  \"offload_param\": {\"device\": \"cpu\"}"),
                            job)) ==
        offloaded({"--offload-optimizer", "0.5", "--offload-parameters", "on", "--set",
                   "offload_pin_memory=false"}));
  const ProgramRun two = estimate(
      "ds.json",
      with(with(kDeepspeed, "\"none\"}", "\"none\"}, \"offload_param\": {\"device\": \"cpu\"}"),
           "\"stage\": 3", "\"stage\": 2"),
      job);
  CHECK(contains(two.err, "offload_param: found cpu with ZeRO-2"));
  // The same parameters in another order of the flat buffer.
  const ProgramRun turns = estimate(
      "ds.json", with(kDeepspeed, "\"stage\": 3", "\"stage\": 3, \"round_robin_gradients\": true"),
      job);
  CHECK(numbers_of(turns) == numbers_of(run));
  CHECK(contains(turns.out, " 0 refused, 0 unknown\n"));
  const ProgramRun open =
      estimate("ds.json", with(kDeepspeed, "per_gpu\": 2", "per_gpu\": \"auto\""), job);
  CHECK(contains(open.err,
                 "found no number, took 1; --micro-batch N --num-microbatches 4 say otherwise"));
  Words four = job;
  four.insert(four.end(), {"--micro-batch", "4", "--num-microbatches", "4"});
  CHECK(contains(
      estimate("ds.json", with(kDeepspeed, "per_gpu\": 2", "per_gpu\": \"auto\""), four).out,
      "batch        128 sequences of 4,096 tokens per step, 4 microbatches of 4 per rank"));
  const ProgramRun bare = estimate("ds.json", kDeepspeed, {"--cluster", "1x8-h100"});
  check_refused(bare, 2);
  CHECK(contains(bare.err, "--model"));
}

TEST_CASE("configurations of other programs are told by name, and what to give instead") {
  const auto message = [](const std::string& text) {
    return message_of([&] { settings_from_yaml(text, "c.yaml"); });
  };
  CHECK(contains(message("learning_rate: 1\n"), "c.yaml: found no run in it"));
  CHECK(message("a: &a\n  b: *a\nparallelism: {tp: *a}\ntokens: {x: 1}\n") != "");
}

}  // namespace shardplan
