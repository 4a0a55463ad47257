// Runs read from what they print. logs/megatron_core_v0.16.1.log is what that release's own parser
// and validate_args print of kScript's arguments.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/tools/commands/answer.h"
#include "tools/from/log.h"

namespace shardplan {
namespace {

constexpr const char* kScript = R"sh(#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm \
  --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \
  --tokenizer-type NullTokenizer --vocab-size 128256 --bf16 --micro-batch-size 1 \
  --global-batch-size 64 --tensor-model-parallel-size 2 --sequence-parallel \
  --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --attention-dropout 0 --hidden-dropout 0 --recompute-granularity selective --lr 1e-4 \
  --train-iters 100 --attention-backend flash --mock-data \
  --no-create-attention-mask-in-dataloader --cross-entropy-loss-fusion
)sh";

const std::string kLog =
    std::string(SHARDPLAN_SOURCE_DIR) + "/tests/tools/from/logs/megatron_core_v0.16.1.log";

constexpr const char* kTitle = "------------------------ arguments ------------------------\n";
constexpr const char* kEnd = "-------------------- end of arguments ---------------------\n";

std::optional<RunSettings> of_log(const std::string& text) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.log";
  write_file(path, text);
  TextFile log(path);
  std::vector<std::string> notes;
  return settings_from_log(log, notes, Library());
}

// The values of an argument; "absent" where it is not given.
Words values_of(const RunSettings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings.arguments, name, &Setting::name);
  return found == settings.arguments.end() ? Words{"absent"} : found->values;
}

// Without what the file is called and how many settings it has.
std::string answer_of(const ProgramRun& run) {
  CHECK(run.exit_code < 2);
  const std::size_t from = run.out.find("\nFrom ");
  REQUIRE(from != std::string::npos);
  return run.out.substr(0, from) + run.out.substr(run.out.find('\n', from + 1));
}

std::string torchtitan_log(const std::string& prefix) {
  std::string text =
      prefix + "[titan] 2026-01-02 03:04:05,678 - root - INFO - Running with configs: {\n";
  for (const char* line : {"  \"job\": {",
                           "    \"config_file\": null,",
                           "    \"print_config\": true",
                           "  },",
                           "  \"model\": {",
                           "    \"name\": \"llama3\",",
                           "    \"flavor\": \"8B\",",
                           "    \"converters\": []",
                           "  },",
                           "  \"training\": {",
                           "    \"local_batch_size\": 1,",
                           "    \"seq_len\": 8192",
                           "  },",
                           "  \"parallelism\": {",
                           "    \"data_parallel_shard_degree\": -1,",
                           "    \"tensor_parallel_degree\": 1",
                           "  },",
                           "  \"compile\": {",
                           "    \"enable\": true,",
                           "    \"components\": [",
                           "      \"model\",",
                           "      \"loss\"",
                           "    ]",
                           "  }",
                           "}"}) {
    text += prefix + line + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("the arguments that Megatron-LM prints give the answer of the script that gave them") {
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.sh";
  write_file(script, kScript);
  const auto answer = [](const std::string& file) {
    return run_in_full({"estimate", "--from", file, "--cluster", "1x8-h100"});
  };
  const ProgramRun printed = answer(kLog);
  CHECK(answer_of(printed) == answer_of(answer(script)));
  CHECK(contains(printed.out, " 0 refused, 0 unknown\n"));
  CHECK(contains(printed.err, "what it prints from line 1 on is the run"));
  CHECK(num_lines(printed.err) == 1);
}

TEST_CASE("printed arguments are those of the command, whatever stands in front of them") {
  for (const std::string prefix : {"", "[default0]:", "0: "}) {
    CAPTURE(prefix);
    const std::optional<RunSettings> settings =
        of_log("starting\n" + prefix + kTitle +  //
               prefix + "  add_bias_linear ................................. False\n" + prefix +
               "  attention_backend ............................... AttnBackend.fused\n" +
               "a line of another process\n" + prefix +
               "  bias_swiglu_fusion .............................. True\n" + prefix +
               "  apply_rope_fusion ............................... True\n" + prefix +
               "  cp_comm_type .................................... ['p2p', 'a2a']\n" + prefix +
               "  cuda_graph_scope ................................ "
               "[<CudaGraphScope.attn: 2>, <CudaGraphScope.moe: 4>]\n" +
               prefix + "  exp_avg_dtype ................................... torch.bfloat16\n" +
               prefix + "  fp8 ............................................. hybrid\n" + prefix +
               "  gradient_accumulation_fusion .................... False\n" + prefix +
               "  moe_layer_freq .................................. [0, 1, 1]\n" + prefix +
               "  moe_router_dtype ................................ None\n" + prefix +
               "  my_own_size ..................................... 12\n" + prefix +
               "  offload_modules ................................. []\n" + prefix +
               "  overlap_p2p_comm ................................ False\n" + prefix +
               "  params_dtype .................................... torch.bfloat16\n" + prefix +
               "  use_custom_fsdp ................................. True\n" + prefix +
               "  use_megatron_fsdp ............................... True\n" + prefix +
               "  virtual_pipeline_model_parallel_size ............ None\n" + prefix +
               "  vocab_size ...................................... None\n" + prefix +
               "  world_size ...................................... 48\n" + prefix + kEnd +
               " > padded vocab (size: 128000) with 256 dummy tokens (new size: 128256)\n");
    REQUIRE(settings.has_value());
    CHECK(settings->num_gpus == 48);
    CHECK(values_of(*settings, "--disable-bias-linear").empty());
    CHECK(values_of(*settings, "--attention-backend") == Words{"fused"});
    CHECK(values_of(*settings, "--cp-comm-type") == Words{"p2p", "a2a"});
    CHECK(values_of(*settings, "--cuda-graph-scope") == Words{"attn", "moe"});
    CHECK(values_of(*settings, "--exp-avg-dtype") == Words{"bf16"});
    CHECK(values_of(*settings, "--fp8-format") == Words{"hybrid"});
    CHECK(values_of(*settings, "--no-gradient-accumulation-fusion").empty());
    CHECK(values_of(*settings, "--moe-layer-freq") == Words{"[0,1,1]"});
    CHECK(values_of(*settings, "--my-own-size") == Words{"12"});  // nobody knows it
    CHECK(values_of(*settings, "--use-megatron-fsdp").empty());
    CHECK(values_of(*settings, "--vocab-size") == Words{"128000"});
    CHECK(settings->arguments.size() == 11);
    CHECK(settings->arguments.front().place.ends_with("run.log:3: add_bias_linear: "));
  }
}

TEST_CASE("of several starts in one log the last whole one counts, and a log may have none") {
  const auto start = [](const std::string& layers) {
    return kTitle + ("  num_layers ...................................... " + layers + "\n");
  };
  const auto settings = of_log(start("4") + kEnd + start("8") + kEnd + "and now\n" + start("16"));
  REQUIRE(settings.has_value());
  CHECK(values_of(*settings, "--num-layers") == Words{"8"});
  CHECK_FALSE(of_log(start("4")).has_value());
  CHECK_FALSE(of_log("step: 4\n").has_value());
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.out";
  write_file(path, "step: 4\n");
  const ProgramRun run = run_in_full({"estimate", "--from", path, "--cluster", "1x8-h100"});
  check_refused(run, 2);
  CHECK(contains(run.err, "or a log that prints the arguments of Megatron-LM"));
}

TEST_CASE("the configuration that torchtitan prints is read as the file it came from") {
  for (const std::string prefix : {"", "[rank0]:", "0: ", " 3: [rank3]:", "[default0]:",
                                   "[1,0]<stdout>:", "[1,12]<stderr>:[rank12]:"}) {
    CAPTURE(prefix);
    const std::optional<RunSettings> settings = of_log(torchtitan_log(prefix));
    REQUIRE(settings.has_value());
    CHECK(settings->format == RunFormat::kTorchtitan);
    CHECK(values_of(*settings, "training.seq_len") == Words{"8192"});
    CHECK(values_of(*settings, "parallelism.data_parallel_shard_degree") == Words{"-1"});
    CHECK(values_of(*settings, "compile.components") == Words{"model", "loss"});
    CHECK(settings->arguments.size() == 9);  // neither null nor an empty list
  }
  const TemporaryDirectory directory;
  const std::string configuration = directory.path() + "/run.toml";
  write_file(configuration,
             "[job]\nprint_config = true\n[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\n"
             "local_batch_size = 1\nseq_len = 8192\n[parallelism]\n"
             "data_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n[compile]\n"
             "enable = true\ncomponents = [\"model\", \"loss\"]\n");
  const std::string log = directory.path() + "/run.log";
  write_file(log, torchtitan_log("[rank0]:"));
  const std::string saved = directory.path() + "/run.json";
  const std::string text = torchtitan_log("");
  write_file(saved, text.substr(text.find('{')));
  const auto answer = [](const std::string& file) {
    return answer_of(run_in_full({"estimate", "--from", file, "--cluster", "1x8-h100"}));
  };
  CHECK(answer(log) == answer(configuration));
  CHECK(answer(saved) == answer(configuration));
}

TEST_CASE("lines that other ranks write into a configuration are no part of it") {
  std::string text = torchtitan_log("0: ");
  text.insert(text.find("0:   \"training\""), "1:   \"training\": {\nloading\n");
  const std::optional<RunSettings> settings = of_log(text);
  REQUIRE(settings.has_value());
  CHECK(values_of(*settings, "training.seq_len") == Words{"8192"});
}

TEST_CASE("a log that prints its run needs nothing beside it but the cluster") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  const std::string oom =
      "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1004.00 MiB. GPU 0 "
      "has a total capacity of 79.10 GiB of which 940.12 MiB is free.\n";
  write_file(log, read_text_file(kLog) + oom);
  const ProgramRun run = run_in_full({"why-oom", log, "--cluster", "1x8-h100"});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "gradients.dense, a weight of 64,256 x 4,096"));
  write_file(log, oom);
  const ProgramRun bare = run_in_full({"why-oom", log, "--cluster", "1x8-h100"});
  check_refused(bare, 2);
  CHECK(contains(bare.err, "expected the run as --model NAME, --from FILE or --case FILE"));
}

}  // namespace shardplan
