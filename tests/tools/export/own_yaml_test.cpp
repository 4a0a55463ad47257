// A Trainer's own YAML with only what a plan changes in it.
#include "tools/export/own_yaml.h"

#include <doctest/doctest.h>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

std::string edited(const std::string& text, const YamlChange& change) {
  return edited_yaml(text, {change});
}

// What an estimate of the file predicts, and its exit code.
struct Answer {
  int exit_code = 0;
  JsonValue json;
};
Answer estimate_of(const std::string& file, const std::string& options) {
  const Words words = {"estimate", "--from", file, "--cluster", "1x8-h200", "--format", "json"};
  const ProgramRun run = run_shardplan(options.empty() ? words : with_options(words, options));
  return {.exit_code = run.exit_code, .json = json_of(run)};
}

bool same_prediction(const JsonValue& one, const JsonValue& other) {
  const auto time_of = [](const JsonValue& answer) {
    return at(at(answer, "predicted"), "step_time_s").real;
  };
  const auto bytes_of = [](const JsonValue& answer) {
    const JsonValue& stage = at(at(answer, "predicted"), "stages").items.front();
    return at(stage, "device_used").integer;
  };
  return time_of(one) == time_of(other) && bytes_of(one) == bytes_of(other);
}

// Exports the file with the options over it; the edited file, which gets the same prediction.
std::string exported(const std::string& text, const std::string& options) {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/train.yaml";
  write_file(file, text);
  const std::string folder = place.path() + "/out";
  const Words words = {"estimate", "--from", file, "--cluster", "1x8-h200"};
  const ProgramRun run = run_shardplan(with_options(words, options + " --export " + folder));
  CHECK_MESSAGE(run.exit_code <= 1, run.err);
  REQUIRE_MESSAGE(contains(run.err, "/out: wrote train.yaml, changes.diff; read back"), run.err);
  CHECK(contains(read_file(folder + "/changes.diff"), "--- a/train.yaml\n+++ b/train.yaml\n"));
  const Answer asked = estimate_of(file, options);
  const Answer read = estimate_of(folder + "/train.yaml", "");
  CHECK(same_prediction(asked.json, read.json));
  return read_file(folder + "/train.yaml");
}

}  // namespace

TEST_CASE("a value in YAML is changed where it stands, with what stands around it") {
  const std::string text =
      "# mine\nmicro_batch: 2   # a GPU\nname: \"a # b\" # c\nfsdp:\n  # inner\n  offload: false\n"
      "  deep: {x: 1}\nlist:\n- offload: true\nlast: 1\n";
  CHECK(
      edited(text, {.path = {"micro_batch"}, .value = "4"}).find("\nmicro_batch: 4   # a GPU\n") !=
      std::string::npos);
  CHECK(edited(text, {.path = {"name"}, .value = "x"}).find("\nname: x # c\n") !=
        std::string::npos);
  CHECK(edited(text, {.path = {"fsdp", "offload"}, .value = "true"}) ==
        "# mine\nmicro_batch: 2   # a GPU\nname: \"a # b\" # c\nfsdp:\n  # inner\n  offload: true\n"
        "  deep: {x: 1}\nlist:\n- offload: true\nlast: 1\n");
  CHECK(yaml_value(text, {"name"}) == "a # b");
  CHECK(yaml_value(text, {"fsdp", "offload"}) == "false");
  CHECK_FALSE(has_yaml_key(text, {"offload"}));  // an item of a list and a deeper key are none
  CHECK_FALSE(has_yaml_key(text, {"fsdp", "deep", "x"}));
  CHECK_FALSE(has_yaml_key(text, {"list", "offload"}));
}

TEST_CASE("a key that YAML has not stands behind its neighbour, or ends its mapping") {
  const std::string text = "a: 1\nb:\n    c: 2\n    # of c\nd: 3\n";
  CHECK(edited(text, {.path = {"e"}, .value = "4", .behind = "a"}) ==
        "a: 1\ne: 4\nb:\n    c: 2\n    # of c\nd: 3\n");
  CHECK(edited(text, {.path = {"e"}, .value = "4", .behind = "z"}) == text + "e: 4\n");
  CHECK(edited(text, {.path = {"b", "e"}, .value = "4"}) ==
        "a: 1\nb:\n    c: 2\n    e: 4\n    # of c\nd: 3\n");
  CHECK(edited(text, {.path = {"x", "y"}, .value = "4"}) == text + "x:\n  y: 4\n");
}

TEST_CASE("lists, texts of several lines and duplicates in YAML are changed as one value") {
  CHECK(edited("targets:\n  - q\n  - v\nr: 1\n", {.path = {"targets"}, .value = "[k]"}) ==
        "targets: [k]\nr: 1\n");
  CHECK(edited("targets:\n- q\n- v\nr: 1\n", {.path = {"targets"}, .value = "[k]"}) ==
        "targets: [k]\nr: 1\n");
  CHECK(edited("text: |\n  r: 5\nr: 1\n", {.path = {"r"}, .value = "2"}) ==
        "text: |\n  r: 5\nr: 2\n");
  CHECK(edited("r: 1\nr: 2\n", {.path = {"r"}, .value = "3"}) == "r: 1\nr: 3\n");
  CHECK(edited("r: 1\nq: 2", {.path = {"r"}, .is_removed = true}) == "q: 2\n");
  CHECK(edited("a: 1\r\nb: 2\r\n", {.path = {"a"}, .value = "3"}) == "a: 3\r\nb: 2\r\n");
}

TEST_CASE("axolotl's own file says the plan, with its comments and its order") {
  const std::string text =
      "base_model: Qwen/Qwen3-8B\n# data\ndatasets:\n  - path: x\n    type: alpaca\n"
      "sequence_len: 4096  # tokens\nsample_packing: true\nflash_attention: true\n"
      "adapter: lora\nlora_r: 16\nlora_target_linear: true\nmicro_batch_size: 2\n"
      "gradient_accumulation_steps: 4 # of a GPU\ngradient_checkpointing: true\n"
      "optimizer: adamw_bnb_8bit\nbf16: true\n";
  CHECK(exported(text, "--micro-batch 4 --recompute none") ==
        "base_model: Qwen/Qwen3-8B\n# data\ndatasets:\n  - path: x\n    type: alpaca\n"
        "sequence_len: 4096  # tokens\nsample_packing: true\nflash_attention: true\n"
        "adapter: lora\nlora_r: 16\nlora_target_linear: true\nmicro_batch_size: 4\n"
        "gradient_accumulation_steps: 2 # of a GPU\ngradient_checkpointing: false\n"
        "optimizer: adamw_bnb_8bit\nbf16: true\n");
  CHECK(contains(exported(text, "--sequence-length 8192 --lora-rank 32 --optimizer sgd"),
                 "sequence_len: 8192  # tokens\n"));
}

TEST_CASE("LLaMA-Factory's own file says recomputation by what turns it off") {
  const std::string text =
      "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\nlora_target: all\n"
      "cutoff_len: 2048\npacking: true\nper_device_train_batch_size: 1\n"
      "gradient_accumulation_steps: 8\nbf16: true\noutput_dir: out\n";
  const std::string changed = exported(text, "--recompute none --micro-batch 2");
  CHECK(contains(changed, "per_device_train_batch_size: 2\n"));
  CHECK(contains(changed, "\ndisable_gradient_checkpointing: true\n"));
  CHECK(contains(changed, "\ngradient_accumulation_steps: 4\n"));
}

// Eight sequences are four pairs; the global batch stays 16 sequences on one GPU.
TEST_CASE("a file of pairs says how many pairs a microbatch has") {
  const std::string text =
      "base_model: Qwen/Qwen3-8B\nrl: dpo\nsequence_len: 4096\nadapter: lora\nlora_r: 16\n"
      "lora_target_linear: true\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
      "gradient_checkpointing: true\nbf16: true\n";
  const std::string changed = exported(text, "--micro-batch 8");
  CHECK(contains(changed, "micro_batch_size: 4\n"));
  CHECK(contains(changed, "gradient_accumulation_steps: 2\n"));
}

TEST_CASE("TRL's own file under FSDP says how much of it is sharded") {
  const std::string text =
      "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\npacking: true\nmax_length: 4096\n"
      "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\nfsdp: full_shard auto_wrap\n"
      "fsdp_config:\n  version: 2\n  reshard_after_forward: true  # FULL_SHARD\n";
  const std::string changed = exported(text, "--zero 2 --framework-option attention_backend=flash");
  CHECK(contains(changed, "  reshard_after_forward: false  # FULL_SHARD\n"));
  CHECK(contains(changed, "\nattn_implementation: flash_attention_2\n"));
  CHECK(contains(changed, "\nfsdp: full_shard auto_wrap\n"));
  const std::string other = text.substr(0, text.find("fsdp_config:"));
  CHECK(contains(exported(other, "--zero 2"), "\nfsdp: shard_grad_op auto_wrap\n"));
}

TEST_CASE("accelerate's own file says ranks and sharding, its command line the rest") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/fsdp.yaml";
  write_file(file,
             "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP  # of torch\n"
             "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n"
             "  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n");
  const std::string folder = place.path() + "/out";
  const ProgramRun run = run_shardplan(
      {"estimate", "--from", file, "--model", "llama3-8b", "--sequence-length", "4096", "--cluster",
       "2x8-h200", "--num-gpus", "16", "--zero", "2", "--micro-batch", "2", "--export", folder});
  CHECK_MESSAGE(run.exit_code == 0, run.err);
  CHECK(read_file(folder + "/fsdp.yaml") ==
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP  # of torch\n"
        "mixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n"
        "  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n");
  CHECK(contains(run.err, "--micro-batch 2 --model llama3-8b"));
}

TEST_CASE(
    "a plan that a Trainer's own file has no words for goes into new files, and why is said") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/train.yaml";
  write_file(file,
             "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\nmax_length: 1024\n"
             "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\nloss_type: nll\n"
             "dtype: bfloat16\n");
  const std::string folder = place.path() + "/out";
  const ProgramRun run = run_shardplan(
      {"estimate", "--from", file, "--cluster", "1x8-h200", "--zero", "3", "--export", folder});
  CHECK_MESSAGE(run.exit_code == 0, run.err);
  CHECK(contains(run.err, "train.yaml itself cannot say this plan, new files do: "));
  CHECK(contains(run.err, "zero 0 -> 3"));
  CHECK(contains(read_file(folder + "/accelerate.yaml"), "distributed_type: FSDP"));
}

TEST_CASE("the configuration that a Trainer's file names comes with it") {
  const TemporaryDirectory place;
  write_file(place.path() + "/zero2.json",
             "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": \"auto\"}}");
  const std::string file = place.path() + "/train.yaml";
  write_file(file,
             "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\n"
             "deepspeed: zero2.json\ncutoff_len: 2048\npacking: true\nmine: 1\n"
             "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\n");
  const std::string folder = place.path() + "/out";
  const ProgramRun run = run_shardplan({"estimate", "--from", file, "--cluster", "1x8-h200",
                                        "--recompute", "none", "--export", folder});
  CHECK_MESSAGE(contains(run.err, "wrote train.yaml, changes.diff, zero2.json"), run.err);
  CHECK(read_file(folder + "/zero2.json") == read_file(place.path() + "/zero2.json"));
}

}  // namespace shardplan
