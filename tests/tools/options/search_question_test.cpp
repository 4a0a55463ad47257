// What a search asks, and that the command it prints asks for exactly the plan that it found.
#include "tools/options/search_question.h"
#include "estimator/price/price.h"
#include "search/space/space.h"
#include "tests/data/message_of.h"
#include "tests/tools/commands/answer.h"
#include "tools/from/shell/read_shell.h"
#include "tools/options/plan_words.h"
#include "tools/options/search_axes.h"

#include <doctest/doctest.h>

#include <random>

namespace shardplan {
namespace {

const Library& library() {
  static const Library shipped;
  return shipped;
}

SearchQuestion asked(const Words& words) {
  return search_question_of(parse_options("search", words), library());
}

std::string refusal(const Words& words) {
  return message_of([&] { asked(words); });
}

Question question_of_command(const std::string& command) {
  Words words = read_shell(command, "command").commands.back().words;
  REQUIRE(words.size() > 2);
  REQUIRE(words[0] == "shardplan");
  REQUIRE(words[1] == "estimate");
  words.erase(words.begin(), words.begin() + 2);
  return question_of(parse_options("estimate", words), library());
}

// Draws plans of the space; those that are valid must come back from their commands as they are.
std::int64_t check_commands(const SearchQuestion& search, std::mt19937_64& random, int draws) {
  const PlanSpace space = plan_space(search.job, search.space);
  std::int64_t valid = 0;
  // Where a framework has few axes, valid plans are rare among all.
  for (int i = 0; i < draws || (valid == 0 && i < 20 * draws); ++i) {
    Plan plan = plan_at(
        space, std::uniform_int_distribution<std::int64_t>(0, num_plans(space) - 1)(random));
    if (first_broken_rule(search.job, plan) != nullptr) {
      continue;
    }
    ++valid;
    const std::string command = search.command_of(plan);
    CAPTURE(command);
    Question question = question_of_command(command);
    CHECK(question.job.global_batch == search.job.global_batch);
    CHECK(question.job.sequence_length == search.job.sequence_length);
    REQUIRE(first_broken_rule(question.job, question.plan) == nullptr);
    PriceTable table = build_price_table(search.job);
    const Price found = price(table, plan);
    PriceTable again = build_price_table(question.job);
    const Price printed = price(again, question.plan);
    CHECK(printed.allocated_bytes == found.allocated_bytes);
    CHECK(printed.device_used_bytes == found.device_used_bytes);
    CHECK(printed.step_time_s == found.step_time_s);
    plan.dp = data_parallel_size(search.job, plan);
    question.plan.dp = data_parallel_size(question.job, question.plan);
    CHECK(question.plan == plan);
  }
  return valid;
}

template <class Value>
const Value& one_of(std::mt19937_64& random, const std::vector<Value>& values) {
  return values[random() % values.size()];
}

// A Megatron-LM run with some of the arguments that change its plan.
std::string random_arguments(std::mt19937_64& random) {
  std::string text =
      R"({"--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 4096, "--swiglu": true,
 "--num-attention-heads": 16, "--seq-length": 2048, "--max-position-embeddings": 2048,
 "--normalization": "RMSNorm", "--disable-bias-linear": true, "--vocab-size": 32000,
 "--position-embedding-type": "rope", "--untie-embeddings-and-output-weights": true, "--bf16": true)";
  const auto add = [&](const std::string& words) { text += random() % 2 == 0 ? ", " + words : ""; };
  add(R"("--global-batch-size": 32)");
  text += ", \"--micro-batch-size\": " + one_of<std::string>(random, {"1", "2"});
  text += ", \"--tensor-model-parallel-size\": " + one_of<std::string>(random, {"1", "2"});
  add(R"("--context-parallel-size": 2, "--cp-comm-type": "a2a")");
  const std::string layers = one_of<std::string>(
      random, {R"("--decoder-first-pipeline-num-layers": 3)",
               R"("--pipeline-model-parallel-layout": "Ettt|tttttL")",
               R"("--num-virtual-stages-per-pipeline-rank": 2)", R"("--attention-dropout": 0)"});
  add("\"--pipeline-model-parallel-size\": 2, " + layers);
  add(R"("--sequence-parallel": true)");
  add(one_of<std::string>(
      random, {R"("--use-distributed-optimizer": true)",
               R"("--use-distributed-optimizer": true, "--use-precision-aware-optimizer": true,
          "--exp-avg-dtype": "bf16", "--main-params-dtype": "fp16", "--exp-avg-sq-dtype": "fp16")"}));
  add(R"("--grad-reduce-in-bf16": true)");
  add(R"("--fp8-format": "hybrid")");
  add(R"("--use-tp-pp-dp-mapping": true)");
  add(R"("--optimizer-cpu-offload": true, "--optimizer-offload-fraction": 0.3)");
  add(one_of<std::string>(random, {R"("--recompute-activations": true)",
                                   R"("--recompute-granularity": "full",
                                       "--recompute-method": "block", "--recompute-num-layers": 3)",
                                   R"("--recompute-granularity": "selective",
                                       "--recompute-modules": ["layernorm", "mlp"])"}));
  return text + "}";
}

std::string random_torchtitan(std::mt19937_64& random) {
  std::string text = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = 4096\n";
  text += "local_batch_size = " + one_of<std::string>(random, {"1", "2", "4"}) + "\n";
  text += "[activation_checkpoint]\nmode = \"" +
          one_of<std::string>(random, {"none", "full", "selective"}) +
          "\"\nselective_ac_option = " + one_of<std::string>(random, {"\"op\"", "\"2\""}) +
          "\n[parallelism]\n";
  text += "tensor_parallel_degree = " + one_of<std::string>(random, {"1", "2"}) + "\n";
  text += "pipeline_parallel_degree = " + one_of<std::string>(random, {"1", "2"}) + "\n";
  text += "data_parallel_replicate_degree = " + one_of<std::string>(random, {"1", "2"}) + "\n";
  text += random() % 2 == 0 ? "pipeline_parallel_schedule = \"Interleaved1F1B\"\n" : "";
  return text;
}

}  // namespace

TEST_CASE("the command of every plan of a search estimates that plan, for every framework") {
  std::mt19937_64 random(5);
  for (const std::string& framework : library().framework_names()) {
    CAPTURE(framework);
    std::int64_t valid = 0;
    for (const char* model : {"llama3-8b", "mixtral-8x7b"}) {
      for (const char* axes : {"default", "all"}) {
        Words words = {
            "--model", model,    "--cluster",         "2x8-h100", "--framework",    framework,
            "--axes",  axes,     "--sequence-length", "4096",     "--global-batch", "64",
            "--range", "tp=1,2", "--range",           "pp=1..2",  "--range",        "cp=1,2"};
        if (framework == "megatron") {
          words.insert(words.end(), {"--framework-option", "cross_entropy=unfused", "--set",
                                     "overlap_grad_reduce=true", "--gpu-memory", "40GiB"});
        }
        valid += check_commands(asked(words), random, 300);
      }
    }
    MESSAGE(framework, ": ", valid, " plans");
    CHECK(valid > 0);
  }
}

TEST_CASE("the command of a search of a run's file estimates the plan, not the file's") {
  std::mt19937_64 random(6);
  const TemporaryDirectory directory;
  std::int64_t valid = 0;
  for (int run = 0; run < 120; ++run) {
    const bool is_megatron = run % 3 != 0;
    const std::string path = directory.path() + (is_megatron ? "/a run's.json" : "/a run's.toml");
    write_file(path, is_megatron ? random_arguments(random) : random_torchtitan(random));
    INFO(read_file(path));
    Words words = {"--from", path, "--cluster", "2x8-h100"};
    if (run % 5 == 0) {
      words.insert(words.end(), {"--axes", "all"});
    }
    valid += check_commands(asked(words), random, 60);
  }
  MESSAGE(valid, " plans");
  CHECK(valid > 100);
}

TEST_CASE("a search of a run's file keeps what it does not search, and tries the run's own plan") {
  std::mt19937_64 random(7);
  const TemporaryDirectory directory;
  for (int run = 0; run < 60; ++run) {
    const bool is_megatron = run % 3 != 0;
    const std::string path = directory.path() + (is_megatron ? "/run.json" : "/run.toml");
    write_file(path, is_megatron ? random_arguments(random) : random_torchtitan(random));
    INFO(read_file(path));
    const SearchQuestion search = asked({"--from", path, "--cluster", "2x8-h100"});
    const Plan& own = search.run->reading.plan;
    const SearchSpace& space = search.space;
    CHECK(space.precision == std::vector<Precision>{own.precision});
    CHECK(space.grad_dtype == std::vector<DType>{own.grad_dtype});
    CHECK(space.master_dtype == std::vector<DType>{own.master_dtype});
    CHECK(space.exp_avg_dtype == std::vector<DType>{own.exp_avg_dtype});
    CHECK(space.exp_avg_sq_dtype == std::vector<DType>{own.exp_avg_sq_dtype});
    CHECK(space.offload == std::vector<Offload>{own.offload});
    CHECK(space.rank_order == std::vector<RankOrder>{own.rank_order});
    const auto has = [](const auto& values, const auto& value) {
      return std::ranges::find(values, value) != values.end();
    };
    CHECK(has(space.tp, own.tp));
    CHECK(has(space.pp, own.pp));
    CHECK(has(space.vpp, own.vpp));
    CHECK(has(space.cp, own.cp));
    CHECK(has(space.zero, own.zero));
    CHECK(has(space.dp_replicate, own.dp_replicate));
    CHECK(has(space.micro_batch, own.micro_batch));
    CHECK(has(space.recompute, own.recompute));
    CHECK(has(space.schedule, own.schedule));
    CHECK(has(space.cp_method, own.cp_method));
  }
}

TEST_CASE("two words for one thing are refused: none is dropped silently") {
  const Words job = {"--model",           "llama3-8b", "--cluster",      "1x8-h100",
                     "--sequence-length", "8192",      "--global-batch", "64"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), job.begin(), job.end());
    return refusal(more);
  };
  CHECK(with({"--fix", "tp=4", "--fix", "tp=2"}) ==
        "--fix tp=2: found a second word for tp, expected one word for an axis");
  CHECK(with({"--fix", "micro-batch=4", "--range", "micro_batch=1,2"}) ==
        "--range micro_batch=1,2: found a second word for micro_batch, expected one word for an "
        "axis");
  CHECK(with({"--set", "swiglu=fused", "--framework-option", "swiglu=unfused"}) ==
        "--set swiglu=fused: found a second word for swiglu, expected one");
  CHECK(with({"--tp", "4", "--fix", "tp=2"}) ==
        "--fix tp=2: found a second word for tp, expected one word for an axis");
  CHECK(with({"--set", "tp=4", "--tp", "4"}) == "--tp: given more than once");
}

TEST_CASE("a search takes the fields of a plan as an estimate does") {
  const auto space_with = [](Words more) {
    const Words job = {"--model",           "llama3-8b", "--cluster",      "1x8-h100",
                       "--sequence-length", "8192",      "--global-batch", "64"};
    more.insert(more.begin(), job.begin(), job.end());
    return search_question_of(parse_options("search", more), library()).space;
  };
  const SearchSpace fixed = space_with({"--fix", "tp=2", "--fix", "micro_batch=4", "--fix",
                                        "schedule=1f1b", "--fix", "sequence_parallel=on", "--fix",
                                        "offload=optimizer:0.5", "--fix", "recompute=selective"});
  for (const Words& asked :
       {Words{"--tp", "2", "--micro-batch", "4", "--schedule", "1f1b", "--sequence-parallel", "on",
              "--offload-optimizer", "0.5", "--recompute", "selective"},
        Words{"--set", "tp=2", "--set", "micro_batch=4", "--schedule", "1f1b", "--fix",
              "sequence_parallel=on", "--set", "offload_optimizer=0.5", "--recompute",
              "selective"}}) {
    const SearchSpace space = space_with(asked);
    CHECK(space.tp == std::vector<std::int64_t>{2});
    CHECK(space.micro_batch == std::vector<std::int64_t>{4});
    CHECK(space.schedule == std::vector{Schedule::k1F1B});
    CHECK(space.sequence_parallel == std::vector{true});
    CHECK(space.offload == fixed.offload);
    CHECK(space.recompute == fixed.recompute);
  }
  const std::vector<Recompute> whole = space_with({"--recompute", "full", "--recompute-method",
                                                   "block", "--recompute-num-layers", "3"})
                                           .recompute;
  REQUIRE(whole.size() == 1);
  CHECK(recompute_text(whole.front()) == "full/block/3");
}

TEST_CASE("--fix and --range take the words of an offload that --list-axes shows, and numbers") {
  for (const auto& [word, share] : {std::pair<std::string, double>{"none", 0},
                                    {"optimizer:0.50", 0.5},
                                    {"optimizer:1", 1},
                                    {"0.25", 0.25}}) {
    SearchSpace space;
    fix_axis(space, "offload=" + word);
    CHECK(space.offload == std::vector<Offload>{{.optimizer = share}});
  }
  SearchSpace space;
  fix_axis(space, "offload=optimizer:1+parameters");
  CHECK(space.offload == std::vector<Offload>{{.optimizer = 1, .parameters = true}});
  restrict_axis(space, "offload=none,optimizer:1");
  CHECK(space.offload == std::vector<Offload>{{}, {.optimizer = 1}});
  CHECK_THROWS_WITH_AS(fix_axis(space, "offload=optimizer:2"),
                       "--fix offload=optimizer:2: found '2', expected a number from 0 to 1",
                       InputError);
}

TEST_CASE("the program refuses options that would say nothing beside others") {
  const Words job = {"--model",           "llama3-8b", "--cluster",      "1x8-h100",
                     "--sequence-length", "8192",      "--global-batch", "64"};
  const auto refused = [&](Words words, const std::string& part) {
    words.insert(words.end(), job.begin(), job.end());
    const ProgramRun run = run_in_full(words);
    INFO(run.err);
    check_refused(run, 2);
    CHECK(contains(run.err, part));
  };
  for (const char* option : {"--distinct", "--pareto", "--list-axes", "--headroom", "--families"}) {
    refused({"search", "--num-gpus", "8,16", option}, option);
  }
  refused({"search", "--num-gpus", "8,16", "--top", "3"}, "--top");
  refused({"search", "--num-gpus", "8,16,8"}, "--num-gpus: found 8 twice");
  refused({"search", "--num-gpus", "8..32,16"}, "--num-gpus: found 16 twice");
  refused({"search", "--tokens", "1e12", "--target-days", "0"}, "--target-days: found '0'");
  refused({"search", "--tokens", "1e12", "--target-cost", "9"}, "--target-cost: found no price");
  refused({"compare", "--against", "tp=2", "--against", "tp=4"}, "--against tp=4");
  refused({"compare", "--against", "foo=1"}, "--against or --set foo=1: found unknown option");
  refused({"why-oom", "-", "--case-id", "a"}, "--case-id");
  refused({"why-oom", "-", "--case", "runs.jsonl"}, "--case");
  refused({"estimate", "--explain", "--format", "csv"}, "--explain");
  refused({"estimate", "--limit", "--format", "csv"}, "--limit");
  CHECK(run_in_full({"why-oom", "-", "--case", "runs.jsonl", "--tp", "4"}).exit_code == 2);
  CHECK(run_in_full({"accuracy", "x.jsonl", "--layouts", "--known-runs"}).exit_code == 2);
}

TEST_CASE("the options of every advice give the plan that was judged") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.toml";
  write_file(path,
             "[model]\nflavor = \"8B\"\n[training]\nseq_len = 8192\nlocal_batch_size = 2\n"
             "[parallelism]\npipeline_parallel_degree = 2\n[activation_checkpoint]\nmode = "
             "\"none\"\n");
  const Words job = {"--model",           "llama3-8b", "--cluster",      "1x8-h100",
                     "--sequence-length", "8192",      "--global-batch", "64"};
  const auto with = [&](const std::string& options) { return with_options(job, options); };
  const Words counted = {"--model",           "llama3-8b", "--cluster",          "1x8-h100",
                         "--sequence-length", "8192",      "--num-microbatches", "4",
                         "--micro-batch",     "2"};
  std::int64_t advices = 0;
  for (const Words& run : {with("--tp 2 --pp 2 --vpp 2 --dp 2"), with("--micro-batch 2"), counted,
                           Words{"--from", path, "--cluster", "1x8-h100"}}) {
    Words asked = {"advise", "--top", "4", "--format", "json"};
    asked.insert(asked.end(), run.begin(), run.end());
    const JsonValue answer = json_of(run_in_full(asked));
    for (const char* list : {"singles", "pairs"}) {
      for (const JsonValue& advice : at(answer, list).items) {
        const std::string options = at(advice, "options").string;
        CAPTURE(options);
        Words estimate = {"estimate", "--format", "json"};
        const Words changed = with_options(run, options);
        estimate.insert(estimate.end(), changed.begin(), changed.end());
        const JsonValue predicted = at(json_of(run_in_full(estimate)), "predicted");
        CHECK(at(predicted, "verdict").string == at(advice, "verdict").string);
        CHECK(at(predicted, "step_time_s").real == at(advice, "step_time_s").real);
        ++advices;
      }
    }
  }
  CHECK(advices > 6);
}

TEST_CASE("a run's recomputation can be changed in part, and its stages anew") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.json";
  write_file(path, R"({"--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 4096,
    "--swiglu": true, "--num-attention-heads": 16, "--seq-length": 2048, "--bf16": true,
    "--max-position-embeddings": 2048, "--normalization": "RMSNorm", "--disable-bias-linear": true,
    "--vocab-size": 32000, "--position-embedding-type": "rope", "--micro-batch-size": 1,
    "--untie-embeddings-and-output-weights": true, "--pipeline-model-parallel-size": 2,
    "--decoder-first-pipeline-num-layers": 3, "--recompute-granularity": "full",
    "--recompute-method": "block", "--recompute-num-layers": 3})");
  const auto plan_with = [&](Words more) {
    more.insert(more.end(), {"--from", path, "--cluster", "1x8-h100"});
    return question_of(parse_options("estimate", more), library()).plan;
  };
  const Plan own = plan_with({});
  CHECK(own.layers_per_chunk == std::vector<std::int64_t>{3, 5});
  const Plan fewer = plan_with({"--recompute-num-layers", "2"});
  CHECK(fewer.recompute.num_layers == 2);
  CHECK(fewer.recompute.method == RecomputeMethod::kBlock);
  CHECK(plan_with({"--recompute", "none"}).recompute == Recompute{});
  CHECK(plan_with({"--pp", "4"}).layers_per_chunk.empty());
  CHECK(plan_with({"--pp", "2"}) == own);
  const std::string titan = directory.path() + "/run.toml";
  write_file(titan, "[model]\nflavor = \"8B\"\n[parallelism]\ntensor_parallel_degree = 2\n");
  const Question resized = question_of(
      parse_options("estimate", {"--from", titan, "--cluster", "1x8-h100", "--tp", "4"}),
      library());
  CHECK_FALSE(why_invalid(resized.job, resized.plan));
  CHECK(plan_with({"--layers-per-chunk", "even"}).layers_per_chunk.empty());
  CHECK_THROWS_AS(plan_with({"--recompute-modules", "mlp"}), InputError);
}

TEST_CASE("advise begins with the verdict of estimate, a tight one too") {
  for (const char* const micro_batch : {"8", "16", "24"}) {
    CAPTURE(micro_batch);
    const auto verdict = [&](const char* command) {
      const ProgramRun run = run_in_full(
          {command, "--model", "llama3-70b", "--framework", "torchtitan", "--cluster", "8x8-h100",
           "--sequence-length", "8192", "--micro-batch", micro_batch, "--num-microbatches", "1",
           "--tp", "8", "--zero", "3", "--recompute", "full"});
      return run.out.substr(0, run.out.find("  "));
    };
    CHECK(verdict("advise") == verdict("estimate"));
  }
}

}  // namespace shardplan
