// `shardplan search` as a user meets it.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "tests/tools/commands/answer.h"

namespace shardplan {

TEST_CASE("search ranks by speed, counts what it pruned and says how to see a plan in full") {
  const Words words = {
      "search", "--model",        "llama3-8b", "--cluster", "1x8-h200", "--sequence-length",
      "8192",   "--global-batch", "64",        "--top",     "3",        "--fix",
      "zero=1", "--range",        "tp=1..4",   "--fix",     "cp=1",     "--format",
      "json"};
  const ProgramRun run = run_in_full(words);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  const JsonValue answer = json_of(run);
  const std::vector<JsonValue>& top = at(answer, "top").items;
  REQUIRE(top.size() == 3);
  std::int64_t tie = 1;
  for (const JsonValue& plan : top) {
    CHECK(at(plan, "tied_group").integer >= tie);
    tie = at(plan, "tied_group").integer;
    CHECK(at(at(plan, "plan"), "tp").integer <= 4);
    CHECK(at(plan, "peak_allocated").integer <= at(at(answer, "memory_rule"), "limit").integer);
  }
  std::int64_t pruned = 0;
  for (const JsonValue& count : at(answer, "pruned").items) {
    pruned += at(count, "plans").integer;
  }
  CHECK(pruned + at(answer, "plans_fitting").integer == at(answer, "plans_in_space").integer);
}

TEST_CASE("search says how its first plan meets the batch, what groups span and what comes next") {
  const Words words = {
      "search", "--model",        "llama3-8b", "--cluster", "2x8-h100",      "--sequence-length",
      "8192",   "--global-batch", "64",        "--fix",     "pp=2",          "--fix",
      "tp=4",   "--range",        "cp=1,2",    "--fix",     "micro_batch=1", "--distinct"};
  const std::string text = run_in_full(words).out;
  CHECK(text.find("\nThe first plan\n") != std::string::npos);
  CHECK(text.find(" microbatches of 1 per rank") != std::string::npos);
  CHECK(text.find("tp 4 in a node") != std::string::npos);
  CHECK(text.find("pp 2 over 2 nodes") != std::string::npos);
  CHECK(text.find("next sizes   tp 4 cp ") != std::string::npos);
}

TEST_CASE("a search's csv has its other lists below the plans, and says which list a row is of") {
  const auto lines_of = [](const Words& more) {
    Words words = {
        "search", "--model",        "llama3-8b", "--cluster", "1x8-h200", "--sequence-length",
        "8192",   "--global-batch", "64",        "--top",     "2",        "--range",
        "tp=1,2", "--fix",          "cp=1",      "--fix",     "pp=1",     "--format",
        "csv"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string text = run_in_full(words).out;
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      lines.push_back(text.substr(begin, text.find('\n', begin) - begin));
    }
    return lines;
  };
  const std::vector<std::string> plain = lines_of({});
  const std::vector<std::string> all = lines_of({"--pareto", "--families", "--headroom"});
  REQUIRE(plain.size() == 3);
  REQUIRE(all.size() > 5);
  CHECK(all[0].starts_with("list," + plain[0] + ",headroom_bytes,"));
  CHECK(all[1].starts_with("ranked," + plain[1]));
  CHECK(all[2].starts_with("ranked," + plain[2]));
  CHECK(all[3].starts_with("pareto,,"));
  CHECK(all.back().starts_with("family,,"));
  CHECK(std::ranges::any_of(all, [](const std::string& line) {
    return line.find(",tp,1,") != std::string::npos && line.starts_with("family,");
  }));
  for (const std::string& line : all) {
    CHECK(std::ranges::count(line, ',') == std::ranges::count(all[0], ','));
  }
  CHECK(lines_of({"--headroom"})[0].starts_with("rank,"));
}

// No run of Megatron-LM among the measurements had a million GPUs, or RTX 4090.
TEST_CASE("an interval of speed is marked where no run that it rests on was like that") {
  const auto sweep = [](const std::string& cluster, const std::string& format) {
    return run_in_full({"search", "--model", "llama3-8b", "--cluster", cluster, "--sequence-length",
                        "1024", "--global-batch", "131072", "--tokens", "1e12", "--fix", "pp=1",
                        "--fix", "cp=1", "--fix", "recompute=none", "--format", format})
        .out;
  };
  const std::string near = sweep("1x8-h100", "table");
  const std::string far = sweep("16384x8-h100", "table");
  const std::string other = sweep("1x8-rtx4090", "table");
  CHECK(!contains(near, "beyond all these runs"));
  CHECK(contains(far, "* beyond all these runs, of 1 to "));
  CHECK(contains(sweep("16384x8-h100", "csv"), ",\"131,072 GPUs\"\n"));
  CHECK(contains(other, "* beyond all these runs, of 1 to "));
}

TEST_CASE("a plan's speed is one number in every answer") {
  const auto answer = [](const std::string& command, const Words& more) {
    Words words = {command,     "--model",        "llama3-8b",
                   "--cluster", "1x8-h200",       "--sequence-length",
                   "8192",      "--global-batch", "64"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words).out;
  };
  Words fixed = {"--fix", "tp=2",          "--fix", "pp=2",
                 "--fix", "cp=1",          "--fix", "vpp=1",
                 "--fix", "micro_batch=1", "--fix", "recompute=none",
                 "--fix", "zero=1",        "--fix", "sequence_parallel=on"};
  fixed.insert(fixed.end(), without_overlaps().begin(), without_overlaps().end());
  const std::string estimate = answer("estimate", {"--tp", "2", "--pp", "2"});
  const std::size_t end = estimate.find(" tokens/s per GPU");
  const std::size_t start = estimate.rfind(' ', end - 1) + 1;
  const std::string speed = estimate.substr(start, end - start);
  CHECK(contains(answer("advise", {"--tp", "2", "--pp", "2"}), " " + speed + " tokens/s per GPU"));
  CHECK(contains(answer("search", fixed), " " + speed + " "));
  Words sweep = fixed;
  sweep.insert(sweep.end(), {"--tokens", "1e12"});
  CHECK(contains(answer("search", sweep), " " + speed + " "));
}

TEST_CASE("the command below a sweep estimates the plan of the chosen cluster, and its cost") {
  Words words = {"search",    "--model",
                 "llama3-8b", "--gpu",
                 "h100,h200", "--num-gpus",
                 "8",         "--sequence-length",
                 "8192",      "--global-batch",
                 "64",        "--fix",
                 "pp=1",      "--fix",
                 "cp=1",      "--tokens",
                 "1e12",      "--price-per-gpu-hour",
                 "3"};
  const ProgramRun run = run_in_full(words);
  const std::size_t start = run.out.find("\nIn full:\n") + 10;
  REQUIRE(start > 10);
  const std::string command = run.out.substr(start, run.out.find('\n', start) - start);
  CHECK(contains(command, "--cluster 1x8-h200"));
  words.insert(words.end(), {"--format", "csv"});
  CHECK(contains(run_in_full(words).out, "," + command + ","));
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/estimate.json";
  CHECK(shell(command + " --format json --out " + path) == 0);
  const JsonValue estimate = parse_json(read_file(path), path);
  const std::string days = std::to_string(at(at(estimate, "training"), "days").real);
  CHECK(contains(run.out, "  " + days.substr(0, days.find('.')) + "."));
}

TEST_CASE("a search takes one price for all clusters, or one for each") {
  const auto search = [](const std::string& prices) {
    return run_in_full({"search", "--model", "llama3-8b", "--gpu", "h100,h200", "--num-gpus",
                        "8,16", "--sequence-length", "8192", "--global-batch", "64", "--fix",
                        "pp=1", "--fix", "cp=1", "--tokens", "1e12", "--price-per-gpu-hour",
                        prices});
  };
  const std::string own = search("2,3.5").out;
  for (const char* price : {"  16.00  ", "  32.00  ", "  28.00  ", "  56.00  "}) {
    CHECK(contains(own, price));
  }
  CHECK(contains(own, "--price-per-gpu-hour 2 "));  // of the cheapest
  CHECK(contains(search("3.5,2").out, "--price-per-gpu-hour 2 "));
  CHECK(contains(search("2,3,4").err,
                 "found 3 prices for 2 clusters, expected one, or one for each"));
  CHECK(search("2,3,4").exit_code == 2);
  CHECK(contains(search("2,x").err, "--price-per-gpu-hour: found 'x', expected a number >= 0"));
}

TEST_CASE("a tie has the same number in every format") {
  const auto search = [](const std::string& format) {
    return run_in_full({"search", "--model", "llama3-8b", "--cluster", "1x8-h200",
                        "--sequence-length", "8192", "--global-batch", "64", "--top", "40", "--fix",
                        "cp=1", "--all-plans", "--format", format})
        .out;
  };
  const JsonValue answer = parse_json(search("json"), "json");
  const std::string csv = search("csv");
  const std::string table = search("table");
  const std::vector<JsonValue>& top = at(answer, "top").items;
  CHECK(at(top.front(), "tied_group").integer == 1);
  const std::int64_t last = at(top.back(), "tied_group").integer;
  CHECK(last > 1);
  CHECK(contains(table, "\n  " + std::to_string(std::ssize(top)) + "    " + std::to_string(last)));
  const std::string line = csv.substr(csv.rfind('\n', csv.size() - 2));
  CHECK(contains(line, "," + std::to_string(last) + ",shardplan estimate"));
}

// Whoever asks with these words gets this plan.
TEST_CASE("of plans tied with the first a search names the simplest, and how to ask for it") {
  const Words words = {"search",   "--model",           "llama3-8b", "--cluster",
                       "8x8-h100", "--sequence-length", "8192",      "--global-batch",
                       "1024",     "--format",          "json"};
  const JsonValue answer = json_of(run_in_full(words));
  const JsonValue& simplest = at(answer, "simplest_tied");
  const double speed = at(simplest, "tokens_per_s_per_gpu").real;
  CHECK(speed > 0.95 * at(at(answer, "top").items.front(), "tokens_per_s_per_gpu").real);
  Words again = words;
  for (const JsonValue& fix : at(simplest, "fix").items) {
    again.insert(again.end(), {"--fix", fix.string});
  }
  const JsonValue fixed = json_of(run_in_full(again));
  CHECK(at(at(fixed, "top").items.front(), "command").string == at(simplest, "command").string);
  CHECK(find(fixed, "simplest_tied") == nullptr);
}

// DeepEP sends a token once to each node (Megatron-LM's flex dispatcher).
TEST_CASE("a mixture over nodes is offered the dispatcher that makes it faster") {
  const JsonValue answer = json_of(run_in_full({"search",
                                                "--model",
                                                "deepseek-v3",
                                                "--cluster",
                                                "128x8-h100",
                                                "--sequence-length",
                                                "4096",
                                                "--global-batch",
                                                "8192",
                                                "--fix",
                                                "ep=32",
                                                "--fix",
                                                "pp=16",
                                                "--fix",
                                                "tp=1",
                                                "--fix",
                                                "cp=1",
                                                "--fix",
                                                "vpp=1",
                                                "--fix",
                                                "etp=1",
                                                "--set",
                                                "num_nextn_predict_layers=0",
                                                "--top",
                                                "1",
                                                "--format",
                                                "json"}));
  const std::vector<JsonValue>& options = at(at(answer, "faster_with"), "options").items;
  CHECK(std::ranges::count_if(options, [](const JsonValue& option) {
          return option.string.starts_with("moe_dispatcher=");
        }) == 1);
  CHECK(std::ranges::any_of(options, [](const JsonValue& option) {
    return option.string == "moe_dispatcher=deepep" || option.string == "moe_dispatcher=hybridep";
  }));
}

TEST_CASE("search names switches that cost speed alone: attention's backend, compile, blocking") {
  const auto faster_with = [](const Words& more) {
    Words words = {
        "search", "--model",        "llama3-8b", "--cluster", "1x8-h100", "--sequence-length",
        "8192",   "--global-batch", "32",        "--top",     "1",        "--fix",
        "pp=1",   "--fix",          "cp=1",      "--fix",     "ep=1"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string out = run_in_full(words).out;
    const std::size_t begin = out.find("faster with");
    return begin == std::string::npos ? "" : out.substr(begin, out.find('\n', begin) - begin);
  };
  CHECK_FALSE(contains(faster_with({}), "attention_backend"));
  CHECK(contains(faster_with({"--set", "attention_backend=unfused"}), "attention_backend="));
  CHECK(contains(faster_with({"--set", "launch_blocking=true"}), "launch_blocking=false"));
  CHECK(contains(faster_with({"--framework", "torchtitan"}), "compile=true"));
  CHECK_FALSE(
      contains(faster_with({"--framework", "torchtitan", "--set", "compile=true"}), "compile="));
  // Sums in one order are wished for.
  CHECK_FALSE(contains(faster_with({"--set", "deterministic_attention=true"}), "deterministic"));
}

TEST_CASE("the switches that search names make its first plan as fast as it says") {
  const ProgramRun run =
      run_in_full({"search", "--model", "llama3-8b", "--cluster", "2x8-h100", "--framework",
                   "torchtitan", "--sequence-length", "8192", "--global-batch", "32", "--top", "1",
                   "--fix", "pp=1", "--format", "json"});
  const JsonValue answer = json_of(run);
  const JsonValue& faster = at(answer, "faster_with");
  const JsonValue& best = at(answer, "top").items.front();
  std::string command = at(best, "command").string;
  REQUIRE(!at(faster, "options").items.empty());
  for (const JsonValue& option : at(faster, "options").items) {
    command += " --framework-option " + option.string;
  }
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/estimate.json";
  CHECK(shell(command + " --format json --out " + path) == 0);
  const JsonValue estimate = parse_json(read_file(path), path);
  CHECK(at(at(estimate, "predicted"), "step_time_s").real == at(faster, "step_time_s").real);
  CHECK(at(faster, "step_time_s").real < at(best, "step_time_s").real);
}

TEST_CASE("a first plan that is tight says so, and which plan runs without") {
  const Words words = {"search",     "--model",        "llama3.1-405b", "--cluster",
                       "128x8-h100", "--framework",    "torchtitan",    "--sequence-length",
                       "8192",       "--global-batch", "1024",          "--top",
                       "4",          "--fix",          "cp=1",          "--fix",
                       "pp=1",       "--allow-tight"};
  const JsonValue answer = json_of(run_in_full(with_options(words, "--format json")));
  const std::vector<JsonValue>& top = at(answer, "top").items;
  REQUIRE(at(top.front(), "status").string == "tight");
  const auto roomy = std::ranges::find_if(
      top, [](const JsonValue& plan) { return at(plan, "status").string == "fits"; });
  REQUIRE(roomy != top.end());
  CHECK(contains(run_in_full(words).out,
                 "rank " + std::to_string(roomy - top.begin() + 1) + " runs without"));
  const Words unasked(words.begin(), words.end() - 1);
  const JsonValue plain = json_of(run_in_full(with_options(unasked, "--format json")));
  CHECK(at(plain, "verdict").string == "fits");
  for (const JsonValue& plan : at(plain, "top").items) {
    CHECK(at(plan, "verdict").string == "fits");
  }
}

// The first plan of this space has pp 1 and vpp 2; the batch of one sequence is what refuses all.
TEST_CASE("where no plan is valid, search names the last rule in the way of any, not the first's") {
  const ProgramRun run =
      run_in_full({"search", "--model", "llama3-8b", "--cluster", "4x8-h100", "--framework",
                   "megatron", "--sequence-length", "8192", "--global-batch", "3", "--fix", "cp=1",
                   "--fix", "tp=1", "--range", "vpp=2,4", "--range", "pp=1,2,4,8"});
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "nearest      global_batch 3 is not divisible by micro_batch 1 * dp 16"));
}

// torchtitan has no biases of queries, keys and values, which Qwen2.5 has.
TEST_CASE("a model that a framework has not is told with the frameworks that have it") {
  const auto search = [](const std::string& framework) {
    return run_in_full({"search", "--model", "qwen2.5-7b", "--cluster", "1x8-h100", "--framework",
                        framework, "--sequence-length", "4096", "--global-batch", "64", "--fix",
                        "cp=1", "--top", "1"});
  };
  const std::string refused = search("torchtitan").out;
  CHECK(contains(refused, "modelled with --framework "));
  const std::string names = refused.substr(refused.find("; modelled with"));
  CHECK(contains(names, "megatron"));
  CHECK_FALSE(contains(names.substr(0, names.find('\n')), "torchtitan"));
  CHECK(search("megatron").exit_code == 0);
}

TEST_CASE("advise offers DeepSpeed's offload where a model does not fit") {
  const std::string advice =
      run_in_full({"advise", "--model", "llama3-8b", "--cluster", "1x1-h100", "--framework",
                   "deepspeed", "--sequence-length", "4096", "--global-batch", "8", "--zero", "3",
                   "--recompute", "full"})
          .out;
  CHECK(contains(advice, "offload_optimizer 0 % -> 100 %\n"));
  CHECK(contains(advice, "offload_optimizer 0 % -> 100 %, offload_parameters off -> on"));
}

// Where this many GPUs or this batch have no plan, no room, or leave most GPUs waiting.
TEST_CASE("another number of GPUs, batch or axis that a search names has the speed that it says") {
  const Words job = {"search", "--model", "llama3-8b", "--sequence-length", "8192"};
  struct Asked {
    Words words;
    Words names;  // the options that the answer names
  };
  for (const Asked& asked :
       {Asked{{"--cluster", "12500x8-h100", "--global-batch", "1024"},
              {"--global-batch", "--num-gpus"}},
        Asked{{"--cluster", "4096x8-h100", "--global-batch", "1024"}, {"--num-gpus"}},
        Asked{{"--cluster", "1x2-h100", "--global-batch", "16"}, {"--axes offload", "--num-gpus"}},
        Asked{{"--cluster", "1x1-h100", "--global-batch", "8", "--framework", "deepspeed"},
              {"--axes offload", "--num-gpus"}},
        Asked{{"--cluster", "1x2-h100", "--global-batch", "16", "--framework", "torchtitan"},
              {"--num-gpus"}},
        Asked{{"--cluster", "1x8-h100", "--global-batch", "64"}, {}},
        Asked{{"--cluster", "1x8-h100", "--global-batch", "64", "--framework", "torchtitan",
               "--model", "mixtral-8x7b"},
              {}}}) {
    Words words = job;
    words.insert(words.end(), {"--format", "json", "--top", "1"});
    std::string options;
    for (const std::string& word : asked.words) { options.append(word).append(" "); }
    words = with_options(words, options);
    const JsonValue answer = json_of(run_in_full(words));
    const JsonValue* const sizes = find(answer, "other_sizes");
    REQUIRE((sizes == nullptr ? 0 : sizes->items.size()) == asked.names.size());
    for (std::size_t at_size = 0; at_size < asked.names.size(); ++at_size) {
      const JsonValue& size = sizes->items[at_size];
      const std::string option = at(size, "option").string;
      CAPTURE(option);
      CHECK(option.starts_with(asked.names[at_size]));
      const JsonValue other = json_of(run_in_full(with_options(words, option)));
      const JsonValue& best = at(other, "top").items.front();
      // Of plans that the model cannot tell apart the search recommends the simplest.
      const double speed = at(size, "tokens_per_s_per_gpu").real;
      CHECK(at(best, "tokens_per_s_per_gpu").real <= speed);
      CHECK(at(best, "tokens_per_s_per_gpu").real >= 0.95 * speed);
      CHECK(at(size, "tokens_per_s").real ==
            doctest::Approx(at(size, "tokens_per_s_per_gpu").real *
                            static_cast<double>(at(size, "num_gpus").integer)));
    }
  }
}

TEST_CASE("the command that search prints estimates the same plan to the byte") {
  const ProgramRun run = run_in_full({"search", "--model", "llama3-8b", "--cluster", "1x8-h200",
                                      "--sequence-length", "8192", "--global-batch", "64", "--top",
                                      "1", "--fix", "cp=1", "--format", "json"});
  REQUIRE(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const JsonValue& best = at(answer, "top").items.front();
  std::string command = at(best, "command").string;
  REQUIRE(command.starts_with("shardplan estimate "));
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/estimate.json";
  CHECK(shell(command + " --format json --out " + path) == 0);
  const JsonValue estimate = parse_json(read_file(path), path);
  const JsonValue& predicted = at(estimate, "predicted");
  CHECK(at(predicted, "step_time_s").real == at(best, "step_time_s").real);
  std::int64_t most = 0;
  for (const JsonValue& stage : at(predicted, "stages").items) {
    most = std::max(most, at(stage, "peak_allocated").integer);
  }
  CHECK(most == at(best, "peak_allocated").integer);
}

// Left out, etp would be tp where ep is 1 and 1 where it is not.
TEST_CASE("commands and advice for a model with experts say how these are sliced") {
  const Words job = {"--model",  "qwen1.5-moe-a2.7b", "--cluster", "1x4-h200",       "--framework",
                     "megatron", "--sequence-length", "1024",      "--global-batch", "4"};
  Words search = {"search", "--fix", "tp=4", "--fix",        "ep=1",  "--fix",
                  "etp=1",  "--fix", "pp=1", "--gpu-memory", "500GiB"};
  search.insert(search.end(), job.begin(), job.end());
  CHECK(contains(run_in_full(search).out, " --etp 1 "));
  Words advise = {"advise", "--tp", "2", "--top", "100", "--format", "json"};
  advise.insert(advise.end(), job.begin(), job.end());
  const JsonValue answer = json_of(run_in_full(advise));
  REQUIRE(!at(answer, "singles").items.empty());
  for (const JsonValue& advice : at(answer, "singles").items) {
    CHECK(contains(at(advice, "options").string, "--etp "));
  }
}

// Files that say etp, and files in which it follows from tp.
TEST_CASE("whoever sets the options of advice for any file of experts gets what it promises") {
  std::mt19937 random(3);
  const auto one_of = [&](const Words& words) { return words[random() % words.size()]; };
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.json";
  std::int64_t offers = 0;
  for (int file = 0; file < 6; ++file) {
    std::string settings = R"({"--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 2048,
      "--swiglu": true, "--num-attention-heads": 16, "--bf16": true, "--seq-length": 2048,
      "--max-position-embeddings": 2048, "--normalization": "RMSNorm", "--vocab-size": 32000,
      "--disable-bias-linear": true, "--position-embedding-type": "rope", "--num-experts": 8,
      "--untie-embeddings-and-output-weights": true, "--moe-router-topk": 2,
      "--micro-batch-size": 2, "--global-batch-size": 64, "--attention-dropout": 0,
      "--hidden-dropout": 0, "--use-distributed-optimizer": true, "--sequence-parallel": true,
      "--moe-grouped-gemm": true)";
    const auto add = [&](const std::string& name, const std::string& value) {
      settings.append(", \"").append(name).append("\": ").append(value);
    };
    add("--tensor-model-parallel-size", one_of({"2", "4"}));
    add("--expert-model-parallel-size", one_of({"1", "2", "4"}));
    if (random() % 2 == 0) {
      add("--expert-tensor-parallel-size", one_of({"1", "2"}));
    }
    write_file(script, settings + "}");
    CAPTURE(settings);
    const Words run = {"--from", script, "--cluster", "1x8-h100", "--format", "json"};
    Words advise = {"advise", "--top", "100"};
    advise.insert(advise.end(), run.begin(), run.end());
    const JsonValue answer = json_of(run_in_full(advise));
    for (const JsonValue& advice : at(answer, "singles").items) {
      const std::string change = at(advice, "change").string;
      if (!change.starts_with("tp ") && !change.starts_with("ep ")) {
        continue;
      }
      CAPTURE(change);
      Words estimate = {"estimate"};
      const Words changed = with_options(run, at(advice, "options").string);
      estimate.insert(estimate.end(), changed.begin(), changed.end());
      const JsonValue predicted = at(json_of(run_in_full(estimate)), "predicted");
      CHECK(at(predicted, "step_time_s").real == at(advice, "step_time_s").real);
      ++offers;
    }
  }
  CHECK(offers > 3);
}

TEST_CASE(
    "advice for a plan bound by the host does not name CUDA graphs, whose pools nobody counts") {
  const ProgramRun run = run_in_full({"advise", "--model", "llama3.2-1b", "--cluster", "1x1-h100",
                                      "--framework", "megatron", "--sequence-length", "256",
                                      "--global-batch", "8", "--micro-batch", "1", "--top", "100"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("micro_batch") != std::string::npos);
  CHECK(run.out.find("cuda_graphs") == std::string::npos);
}

TEST_CASE("advice does not offer exchanges beside another microbatch, whose layers nobody counts") {
  const ProgramRun run = run_in_full({"advise", "--model", "mixtral-8x7b", "--cluster", "4x8-h100",
                                      "--framework", "megatron", "--sequence-length", "4096",
                                      "--global-batch", "256", "--tp", "2", "--pp", "4"});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "overlap_grad_reduce"));
  CHECK_FALSE(contains(run.out, "overlap_moe_expert_parallel_comm"));
}

TEST_CASE("a search in which nothing fits exits with 1 and shows what the smallest plan needs") {
  const Words words = {"search",   "--model",           "llama3-70b", "--cluster",
                       "1x8-h200", "--sequence-length", "8192",       "--global-batch",
                       "8",        "--gpu-memory",      "16GiB",      "--fix",
                       "cp=1"};
  const ProgramRun run = run_in_full(words);
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "DOES NOT FIT"));
  CHECK(contains(run.out, "the smallest valid plan allocates"));
  CHECK(contains(run.out, "shardplan estimate --model llama3-70b"));
}

TEST_CASE("a space of more plans than 64 bits count is refused, not found empty") {
  std::string list = "1";
  for (int value = 2; value <= 3000; ++value) { list.append(",").append(std::to_string(value)); }
  Words words = {
      "search",    "--model",        "deepseek-v3", "--cluster", "256x8-h100", "--sequence-length",
      "4k",        "--global-batch", "15360",       "--axes",    "all",        "--range",
      "dp=1..4096"};
  for (const char* axis : {"tp", "cp", "ep", "micro_batch"}) {
    words.insert(words.end(), {"--range", std::string(axis) + "=" + list});
  }
  const ProgramRun run = run_in_full(words);
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("--axes, --range: found more plans than 64 bits count") != std::string::npos);
}

TEST_CASE("without shardplan-validate its commands say in one line how to build it") {
  const TemporaryDirectory alone;
  const std::string program = alone.path() + "/shardplan";
  std::filesystem::copy_file(built_program("shardplan"), program);
  for (const char* command : {"validate", "calibrate"}) {
    const ProgramRun run =
        StartedProgram(program, {command, "cases.jsonl"}, {"PATH=/nowhere"}).wait();
    check_refused(run, 3);
    CHECK(contains(run.err, "to build it: cmake --preset release"));
  }
}

TEST_CASE("every listing has rows in every format") {
  for (const Words& listing : {Words{"models"}, Words{"gpus"}, Words{"clusters"},
                               Words{"frameworks"}, Words{"options", "megatron"}}) {
    for (const char* format : {"table", "csv", "json"}) {
      Words words = {"list"};
      words.insert(words.end(), listing.begin(), listing.end());
      words.insert(words.end(), {"--format", format});
      const ProgramRun run = run_in_full(words);
      INFO(listing.front() << " " << format);
      CHECK(run.exit_code == 0);
      CHECK(run.out.size() > 100);
    }
  }
}

TEST_CASE("help and version answer on standard output") {
  for (const Words& words : {Words{"help"}, Words{"--help"}, Words{"help", "estimate"},
                             Words{"search", "--help"}, Words{"version"}, Words{"--version"}}) {
    const ProgramRun run = run_in_full(words);
    INFO(words.front());
    CHECK(run.exit_code == 0);
    CHECK(!run.out.empty());
    CHECK(run.err.empty());
  }
}

TEST_CASE(
    "a sweep names clusters of one kind of GPU, and of unknown prices says nothing is cheap") {
  const auto text_of = [](const std::string& clusters, const Words& more) {
    Words words = {
        "search", "--model",  "llama3-8b",     "--cluster",         clusters, "--num-gpus",
        "16",     "--fix",    "pp=1",          "--sequence-length", "8192",   "--fix",
        "cp=1",   "--fix",    "micro_batch=1", "--global-batch",    "64",     "--fix",
        "zero=1", "--tokens", "1e12"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words).out;
  };
  const std::string some = text_of("dgx-h100,aws-p5,gcp-a3-mega", {});
  CHECK(some.find("dgx-h100 limited to 16 GPUs") != std::string::npos);
  CHECK(
      some.find("16 x H100-SXM-80GB (aws-p5 limited to 16 GPUs), of those whose price is known") !=
      std::string::npos);
  CHECK(text_of("dgx-h100", {}).find("cheapest") == std::string::npos);
  CHECK(text_of("dgx-h100", {"--target-days", "10000"}).find("fewest GPUs that reach the target") !=
        std::string::npos);
}

}  // namespace shardplan
